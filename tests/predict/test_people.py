from itertools import groupby
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fer_vit.predict.people import People

LABELS = ["neutral", "happiness"]


def frames(path: str, times: list[float | None], labels: dict[int, str]) -> list[list[dict[str, object]]]:
    """The rows of a video; one letter for each person's label in each frame: n, h, or a dot while away."""
    names, found = {"n": "neutral", "h": "happiness"}, []
    for number, seconds in enumerate(times):
        here = [(track, word[number]) for track, word in labels.items() if word[number] != "."]
        rows = [
            {"path": path, "frame": number, "seconds": seconds, "track": t, "face": i, "label_smoothed": names[letter]}
            for i, (t, letter) in enumerate(here)
        ]
        found.append(rows or [{"path": path, "frame": number, "seconds": seconds}])
    return found


def table(videos: list[list[list[dict[str, object]]]], tmp_path: Path) -> list[dict[str, object]]:
    people = People()
    for rows in videos:
        for frame in rows:
            people.add(frame)
    people.write(tmp_path / "people.parquet", LABELS)
    return pq.read_table(tmp_path / "people.parquet").to_pylist()


def test_shares_of_time_and_the_longest_run(tmp_path: Path) -> None:
    times = [0.0, 0.1, 0.2, 1.2, 1.3, 1.4]  # one frame is shown for a second
    words = {0: "nnhnhh", 3: ".hh.hh"}
    first, other = table([frames("a.mp4", times, words)], tmp_path)
    assert (first["path"], first["track"], first["frames"]) == ("a.mp4", 0, 6)
    assert (first["first_seen"], first["last_seen"]) == (0.0, 1.4)
    steps = [0.1, 0.1, 1.0, 0.1, 0.1, 0.1]
    for person, word in ((first, words[0]), (other, words[3])):
        here = [(letter, step) for letter, step in zip(word, steps, strict=True) if letter != "."]
        for name in LABELS:
            part = sum(step for letter, step in here if letter == name[0]) / sum(step for _, step in here)
            assert person[name] == pytest.approx(part)
        runs = [(sum(s for _, s in run), k) for k, run in groupby(zip(word, steps, strict=True), lambda pair: pair[0])
                for run in [list(run)] if k != "."]  # fmt: skip
        assert person["longest_run_seconds"] == pytest.approx(max(runs)[0])
        assert str(person["longest_run"])[0] == max(runs)[1]


def test_videos_photos_and_ends(tmp_path: Path) -> None:
    photo = [{"path": "p.jpg", "face": 0, "track": None}]
    broken = [{"path": "a.mp4", "status": "damaged"}]
    rows = table(
        [frames("a.mp4", [0.0, 0.5], {0: "hh"}), [broken, photo], frames("b.mp4", [0.0], {0: "n"}), [photo]], tmp_path
    )
    assert [(row["path"], row["frames"], row["happiness"]) for row in rows] == [("a.mp4", 2, 1.0), ("b.mp4", 1, 0.0)]
    assert rows[0]["longest_run_seconds"] == 1.0
    assert table([[photo], frames("c.mp4", [0.0], {})], tmp_path) == []
