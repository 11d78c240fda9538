"""Tables of people and intervals, from frames with faces."""

import cmath
import csv
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from praatio import textgrid

from fer_vit.errors import FerVitError
from fer_vit.faces import Faces, PhotoInfo, Scheme, found_faces, no_faces
from fer_vit.fields import face_fields
from fer_vit.heads import MEANS, HeadOutputs
from fer_vit.predict.outputs import Outputs, check_intervals
from fer_vit.predict.people import People, format_textgrid, write_intervals

LABELS = ["neutral", "happiness"]
SMILE = "move_smile"
OUTPUTS = HeadOutputs.among([SMILE, "yaw"])
SCHEME = Scheme(tuple(LABELS))


def frames(path: str, times: list[float | None], labels: dict[int, str]) -> list[Faces]:
    """The frames of a video; one letter for each person's label in each frame: n, h,
    or a dot while away.
    """
    video = []
    for number, seconds in enumerate(times):
        tracks = [track for track, word in labels.items() if word[number] != "."]
        smoothed = {
            "n": (0.7, 0.6 + number / 100 - 0.1),
            "h": (0.6 + number / 100 - 0.1, 0.6 + number / 100),
        }
        shares = [smoothed[labels[track][number]] for track in tracks]
        video.append(frame(path, number, seconds, tracks, shares))
    return video


def frame(
    path: str,
    number: int,
    seconds: float | None,
    tracks: Sequence[int],
    smoothed: Sequence[Sequence[float]],
    scheme: Scheme = SCHEME,
    outputs: Sequence[Sequence[float]] | None = None,
) -> Faces:
    """The faces of a frame with smoothed probabilities (F, C), and outputs (F, K)."""
    info = PhotoInfo(path, frame=number, seconds=seconds)
    faces = found_faces([info], np.zeros(len(tracks), np.int64), track=tracks, scheme=scheme)
    averages = np.reshape(smoothed, (len(tracks), len(scheme.labels))).astype(float)
    values = np.reshape(outputs or [], (len(tracks), len(scheme.outputs))).astype(float)
    return replace(faces, smoothed=averages, smoothed_outputs=values)


def table(videos: list[list[Faces]], tmp_path: Path) -> list[dict[str, object]]:
    people = People()
    for video in videos:
        for faces in video:
            people.add(faces)
    people.write(tmp_path / "people.parquet", LABELS, overwrite=True)
    return pq.read_table(tmp_path / "people.parquet").to_pylist()


def test_shares_of_time_and_the_longest_run(tmp_path: Path) -> None:
    times = [0.0, 0.1, 0.2, 1.2, 1.3, 1.4]  # one frame is shown for a second
    words = {0: "nnhnhh", 3: ".hh.hh"}
    first, second = table([frames("a.mp4", times, words)], tmp_path)
    assert first["path"] == "a.mp4"
    assert first["track"] == 0
    assert first["frames"] == 6
    assert first["first_seen"] == 0.0
    assert first["last_seen"] == 1.4
    for person, shares, longest in ((first, (0.3, 1.2), 1.0), (second, (0.0, 1.3), 1.1)):
        assert [person[f"time_{name}"] * sum(shares) for name in LABELS] == pytest.approx(shares)
        assert person["longest_run"] == "happiness"
        assert person["longest_run_seconds"] == pytest.approx(longest)


def test_videos_photos_and_ends(tmp_path: Path) -> None:
    photo = found_faces([PhotoInfo("p.jpg")], np.zeros(1, np.int64), scheme=SCHEME)
    broken = no_faces([PhotoInfo("a.mp4", "damaged")], SCHEME)
    rows = table(
        [
            frames("a.mp4", [0.0, 0.5], {0: "hh"}),
            [broken, photo],
            frames("b.mp4", [0.0], {0: "n"}),
            [photo],
        ],
        tmp_path,
    )
    assert [(row["path"], row["frames"], row["time_happiness"]) for row in rows] == [
        ("a.mp4", 2, 1),
        ("b.mp4", 1, 0),
    ]
    assert rows[0]["longest_run_seconds"] == 1.0
    assert table([[photo], frames("c.mp4", [0.0], {})], tmp_path) == []


def test_intervals_come_back_from_csv_and_textgrid(tmp_path: Path) -> None:
    people = People()
    for faces in frames("a.mp4", [0.0, 0.1, 0.2, 1.2, 1.3, 1.4], {0: "nnhnhh", 3: ".hh.h."}):
        people.add(faces)
    intervals = people.episodes()
    expected = [
        (0, 0.0, 0.2, "neutral"),
        (0, 0.2, 1.2, "happiness"),
        (0, 1.2, 1.3, "neutral"),
        (0, 1.3, 1.5, "happiness"),
        (3, 0.1, 1.2, "happiness"),
        (3, 1.3, 1.4, "happiness"),
    ]
    assert [(i.track, i.start, round(i.end, 6), i.label) for i in intervals] == expected
    assert [i.confidence for i in intervals] == pytest.approx([0.7, 0.62, 0.7, 0.645, 0.615, 0.64])
    for name in ("i.csv", "i.TextGrid"):
        write_intervals(tmp_path / name, people, {"a.mp4": 0.0}, overwrite=True)
    table = pandas.read_csv(tmp_path / "i.csv")
    assert [*table.columns] == ["path", "track", "start", "end", "label", "confidence"]
    assert table["confidence"].tolist() == pytest.approx([i.confidence for i in intervals])
    assert [
        *table[["track", "start", "end", "label"]].itertuples(index=False, name=None)
    ] == expected
    grid = textgrid.openTextgrid(str(tmp_path / "i.TextGrid"), includeEmptyIntervals=True)
    assert grid.tierNames == ("track 0", "track 3")
    entries = [(name, *entry) for name in grid.tierNames for entry in grid.getTier(name).entries]
    gaps = [(3, 0.0, 0.1, ""), (3, 1.2, 1.3, ""), (3, 1.4, 1.5, "")]
    assert entries == [(f"track {track}", *rest) for track, *rest in sorted([*expected, *gaps])]


@pytest.mark.parametrize("name", ["i.TextGrid", "i.csv"])
def test_times_in_other_programs_count_from_the_start_of_the_file(
    name: str, tmp_path: Path
) -> None:
    people = People()
    for faces in frames("a.ts", [50_000.5, 50_000.6, 50_000.7], {0: "nnh"}):
        people.add(faces)
    write_intervals(tmp_path / name, people, {"a.ts": 50_000.0}, overwrite=True)
    if name.endswith("csv"):
        table = pandas.read_csv(tmp_path / name)
        assert table["start"].tolist() == pytest.approx([0.5, 0.7])
        assert table["end"].tolist() == pytest.approx([0.7, 0.8])
        return
    grid = textgrid.openTextgrid(str(tmp_path / name), includeEmptyIntervals=True)
    assert grid.maxTimestamp == pytest.approx(0.8)
    entries = grid.getTier("track 0").entries
    assert [label for *_, label in entries] == ["", "neutral", "happiness"]
    assert entries[1][:2] == pytest.approx((0.5, 0.7))


def test_a_clip_without_a_face_is_an_empty_tier_of_its_length(tmp_path: Path) -> None:
    people = People()
    for faces in frames("a.mp4", [number / 10 for number in range(50)], {}):
        people.add(faces)
    people.end()
    write_intervals(tmp_path / "none.TextGrid", people, {"a.mp4": 0.0}, overwrite=True)
    grid = textgrid.openTextgrid(str(tmp_path / "none.TextGrid"), includeEmptyIntervals=True)
    assert grid.maxTimestamp == pytest.approx(5.0)
    (tier,) = grid.tiers
    assert [tuple(entry) for entry in tier.entries] == [(0.0, pytest.approx(5.0), "")]


def test_frames_of_low_confidence_have_no_expression(tmp_path: Path) -> None:
    people = People(min_confidence=0.65)  # happiness reaches it from frame 5 on
    for faces in frames("a.mp4", [n / 10 for n in range(10)], {0: "nnnhhhhhhh", 1: "hhhhh....."}):
        people.add(faces)
    intervals = [(i.track, round(i.start, 6), round(i.end, 6), i.label) for i in people.episodes()]
    assert intervals == [(0, 0.0, 0.3, "neutral"), (0, 0.5, 1.0, "happiness")]
    people.write(tmp_path / "people.parquet", LABELS, overwrite=True)
    first, low = pq.read_table(tmp_path / "people.parquet").to_pylist()
    assert first["frames"] == 10
    assert first["last_seen"] == 0.9
    assert first["time_happiness"] == pytest.approx(5 / 8)
    assert first["longest_run"] == "happiness"
    assert first["longest_run_seconds"] == pytest.approx(0.5)
    assert low["frames"] == 5
    assert low["longest_run"] is None
    assert low["time_neutral"] is None


def moving(values: list[float | None], threshold: float | None) -> People:
    """A person whose smoothed smile has these values in frames of 0.1 seconds; None:
    the person is away.
    """
    people = People(outputs=OUTPUTS, threshold=threshold)
    scheme = Scheme(("neutral",), OUTPUTS)
    for number, value in enumerate(values):
        seconds = number / 10
        if value is None:
            people.add(frame("a.mp4", number, seconds, [], [], scheme))
        else:
            people.add(frame("a.mp4", number, seconds, [3], [[0.9]], scheme, [[value, 90 * value]]))
    return people


def test_movements_above_a_threshold_have_intervals_and_means() -> None:
    values = [0.2, 0.6, 0.8, 0.2, 0.9, None, 0.7]
    intervals = [
        (run.label, round(run.start, 3), round(run.end, 3), round(run.confidence, 3))
        for run in moving(values, 0.5).episodes()
        if run.label != "neutral"
    ]
    assert intervals == [
        ("move_smile", 0.1, 0.3, 0.7),
        ("move_smile", 0.4, 0.5, 0.9),
        ("move_smile", 0.6, 0.7, 0.7),
    ]
    assert {run.label for run in moving(values, None).episodes()} == {"neutral"}
    text = format_textgrid(moving(values, 0.5).episodes(), 0.7)
    assert 'name = "track 3"' in text
    assert 'name = "track 3 move_smile"' in text


@pytest.mark.parametrize(
    ("heads", "columns", "intervals"),
    [
        ((), {"time_neutral", "longest_run", "mean_move_smile", "mean_yaw"}, {"neutral", SMILE}),
        (("expression",), {"time_neutral", "longest_run"}, {"neutral"}),
        (("movements",), {"mean_move_smile"}, {SMILE}),
        (("pose", "movements"), {"mean_move_smile", "mean_yaw"}, {SMILE}),
    ],
)
def test_tables_of_people_have_the_chosen_heads(
    heads: tuple[str, ...], columns: set[str], intervals: set[str], tmp_path: Path
) -> None:
    outputs = Outputs(
        tmp_path / "faces.parquet",
        people=tmp_path / "people.parquet",
        intervals=tmp_path / "intervals.parquet",
        heads=heads,
        threshold=0.5,
    )
    outputs.write_people(moving([0.6, 0.7], 0.5), ["neutral"])
    known = set(pq.read_schema(tmp_path / "people.parquet").names)
    assert known - {"path", "track", "first_seen", "last_seen", "frames"} == (
        columns | ({"longest_run_seconds"} & known)
    )
    labels = pq.read_table(tmp_path / "intervals.parquet")["label"].to_pylist()
    assert set(labels) == intervals


@pytest.mark.parametrize(
    ("heads", "threshold"), [(["expression"], 0.5), (["movements"], None), (["pose"], 0.5)]
)
def test_intervals_of_heads_that_are_left_out_are_an_error(
    heads: list[str], threshold: float | None
) -> None:
    outputs = Outputs(
        Path("a.csv"), intervals=Path("b.csv"), heads=tuple(heads), threshold=threshold
    )
    with pytest.raises(FerVitError, match="outputs"):
        check_intervals(outputs, ["expression", "pose", "movements"], "m")


def test_means_of_outputs_are_over_time(tmp_path: Path) -> None:
    moving([0.2, 0.6, 0.7], None).write(tmp_path / "people.parquet", LABELS, overwrite=True)
    (row,) = pq.read_table(tmp_path / "people.parquet").to_pylist()
    assert row["mean_move_smile"] == pytest.approx(0.5)
    turns = [cmath.rect(1, math.radians(90 * value)) for value in (0.2, 0.6, 0.7)]
    assert row["mean_yaw"] == pytest.approx(math.degrees(cmath.phase(sum(turns))))


@pytest.mark.parametrize("turn", [0.0, 90.0, 180.0, -170.0])
def test_the_mean_of_a_roll_is_a_direction(tmp_path: Path, turn: float) -> None:
    """Upside down, 179 and -177 degrees have the mean -179, not 1."""
    scheme = Scheme(tuple(LABELS), HeadOutputs.among(["roll"]))
    people = People(outputs=scheme.outputs)
    for number, roll in enumerate([-1.0, 3.0, -1.0, 3.0]):
        turned = (roll + turn + 180) % 360 - 180
        people.add(frame("a.mp4", number, number / 10, [0], [[0.9, 0.1]], scheme, [[turned]]))
    people.write(tmp_path / "people.parquet", LABELS, overwrite=True)
    (row,) = pq.read_table(tmp_path / "people.parquet").to_pylist()
    assert row["mean_roll"] == pytest.approx((1 + turn + 180) % 360 - 180)


def test_an_unknown_movement_ends_its_interval() -> None:
    scheme = Scheme(tuple(LABELS), HeadOutputs.among(["move_smile"]))
    people = People(outputs=scheme.outputs, threshold=0.5)
    for number, value in enumerate([0.8, np.nan, np.nan, 0.9, 0.9]):
        people.add(frame("a.mp4", number, number / 10, [0], [[0.9, 0.1]], scheme, [[value]]))
    spans = []
    for run in people.episodes():
        if run.label == "move_smile":
            spans.append((run.start, run.end))
    assert spans == [(0.0, 0.1), (pytest.approx(0.3), pytest.approx(0.5))]


def test_people_of_a_table_are_the_people_of_its_faces(tmp_path: Path) -> None:
    scheme = Scheme(tuple(LABELS), OUTPUTS)
    video = [
        frame("a.mp4", 0, 0.0, [0, 4], [[0.6, 0.4], [0.2, 0.8]], scheme, [[0.1, 3], [0.7, -4]]),
        frame("a.mp4", 1, 0.1, [], [], scheme),
        frame("a.mp4", 2, 0.4, [4], [[0.55, 0.45]], scheme, [[0.8, np.nan]]),
        no_faces([PhotoInfo("a.mp4", "damaged")], scheme),
    ]
    by_faces = People(outputs=OUTPUTS, threshold=0.5)
    by_rows = People(outputs=OUTPUTS, threshold=0.5)
    fields = face_fields(LABELS, OUTPUTS, videos=True)
    for faces in video:
        by_faces.add(faces)
        by_rows.add_rows(faces.rows(fields))
    assert by_faces.episodes() == by_rows.episodes()
    assert by_faces.spans == by_rows.spans
    written = []
    for people in (by_faces, by_rows):
        people.write(tmp_path / "people.csv", LABELS, overwrite=True)
        written.append((tmp_path / "people.csv").read_text())
    assert written[0] == written[1]
    assert written[0].count("a.mp4") == 2


def test_a_table_and_its_faces_have_the_same_expressions_above_the_least_confidence() -> None:
    fields = face_fields(LABELS, videos=True)
    by_faces = People(min_confidence=0.65)
    by_rows = People()
    for faces in frames("a.mp4", [n / 10 for n in range(10)], {0: "nnnhhhhhhh", 1: "hhhhh....."}):
        by_faces.add(faces)
        by_rows.add_rows(faces.rows(fields, min_confidence=0.65))
    intervals = [(run.track, run.label, run.start, run.end) for run in by_rows.episodes()]
    assert intervals == [(0, "neutral", 0.0, pytest.approx(0.3)), (0, "happiness", 0.5, 1.0)]
    assert by_faces.episodes() == by_rows.episodes()


def test_numbers_of_a_summary_have_the_digits_of_their_unit(tmp_path: Path) -> None:
    people = People(outputs=HeadOutputs.among(["move_jawOpen", *MEANS["smile"], "yaw"]))
    for frame, share in enumerate((1 / 3, 2 / 3, 1 / 7)):
        face = {"path": "a.mp4", "frame": frame, "seconds": frame / 3, "face": 0, "track": 1}
        cells = {"label_smoothed": "anger", "smoothed_anger": 1 - share, "smoothed_neutral": share}
        cells |= {"smoothed_move_jawOpen": share, "smoothed_yaw": 100 * share}
        cells |= {"smoothed_move_mouthSmileLeft": share}
        cells |= {"smoothed_move_mouthSmileRight": 1 - share}
        people.add_rows([face | cells])
    people.write(tmp_path / "people.csv", ["anger", "neutral"], overwrite=True)
    (row,) = csv.DictReader((tmp_path / "people.csv").read_text().splitlines())
    assert re.fullmatch(r"0\.\d{1,4}", row["mean_move_jawOpen"])
    assert float(row["mean_smile"]) == pytest.approx(0.5, abs=1e-4)
    assert re.fullmatch(r"\d+\.\d", row["mean_yaw"])


def test_the_label_of_a_table_holds_where_rounded_probabilities_are_equal() -> None:
    people = People()
    row = {"path": "a.mp4", "frame": 0, "seconds": 0.0, "face": 0, "track": 0}
    cells = {"label_smoothed": "happiness", "smoothed_neutral": 0.5, "smoothed_happiness": 0.5}
    people.add_rows([row | cells])
    assert [run.label for run in people.episodes()] == ["happiness"]


def test_opposite_angles_have_an_empty_mean(tmp_path: Path) -> None:
    scheme = Scheme(tuple(LABELS), HeadOutputs.among(["roll"]))
    people = People(outputs=scheme.outputs)
    for number, roll in enumerate([-90.0, 90.0]):
        people.add(frame("a.mp4", number, number / 10, [0], [[0.9, 0.1]], scheme, [[roll]]))
    people.write(tmp_path / "people.parquet", LABELS, overwrite=True)
    (row,) = pq.read_table(tmp_path / "people.parquet").to_pylist()
    assert row["mean_roll"] is None
