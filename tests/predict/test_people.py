"""Tables of people and intervals, from frames with faces."""

import cmath
import csv
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from praatio import textgrid

from fer_vit.errors import FerVitError
from fer_vit.faces import Faces, PhotoInfo, Scheme, found_faces, no_faces
from fer_vit.heads import MEANS, HeadOutputs
from fer_vit.predict.outputs import Outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.table_folder import predict_folder
from fer_vit.predict.tables import predict_table
from fer_vit.processes import ProcessRank
from tests.helpers.faces import tiny_recognizer, write_tables
from tests.helpers.videos import Actor, scene, write_numbered, write_video

LABELS = ("neutral", "happiness")
SMILE = "move_smile"
SCHEME = Scheme(LABELS)
CLIP = [Path("a.mp4")]


def frames(path: str, times: list[float], labels: dict[int, str]) -> list[Faces]:
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
    seconds: float,
    tracks: Sequence[int],
    smoothed: Sequence[Sequence[float]],
    columns: Sequence[str] = (),
    outputs: Sequence[Sequence[float]] = (),
) -> Faces:
    """The faces of a frame with smoothed probabilities (F, C), and outputs (F, K)."""
    scheme = replace(SCHEME, outputs=HeadOutputs.among(columns))
    info = PhotoInfo(path, frame=number, seconds=seconds)
    faces = found_faces([info], np.zeros(len(tracks), np.int64), track=tracks, scheme=scheme)
    averages = np.reshape(smoothed, (len(tracks), len(LABELS))).astype(float)
    values = np.reshape(outputs, (len(tracks), len(columns))).astype(float)
    return replace(
        faces, probabilities=averages, smoothed=averages, outputs=values, smoothed_outputs=values
    )


def output_frames(
    values: Sequence[Sequence[float] | None], columns: Sequence[str], step: float = 0.1
) -> list[Faces]:
    """A neutral person with these smoothed outputs in each frame; None: the person is away."""
    video = []
    for number, row in enumerate(values):
        tracks = [] if row is None else [3]
        shares = [(0.9, 0.1)] * len(tracks)
        video.append(
            frame("a.mp4", number, number * step, tracks, shares, columns, [row] if row else [])
        )
    return video


class Written(NamedTuple):
    """The rows of the table of people, and of the table of intervals."""

    people: list[dict[str, object]]
    intervals: list[dict[str, object]]


def tables_of(
    video: Sequence[Faces],
    tmp_path: Path,
    sources: Sequence[Path] = CLIP,
    columns: tuple[str, ...] = (),
    **options: object,
) -> Written:
    people = tmp_path / "people.parquet"
    intervals = tmp_path / "intervals.parquet"
    outputs = Outputs(tmp_path / "faces.csv", people, intervals, **options)  # type: ignore[arg-type]
    write_tables(video, sources, outputs, LABELS, columns)
    return Written(pq.read_table(people).to_pylist(), pq.read_table(intervals).to_pylist())


def spans(intervals: list[dict[str, object]], label: str = "") -> list[tuple[object, ...]]:
    return [
        (row["track"], row["label"], pytest.approx(row["start"]), pytest.approx(row["end"]))
        for row in intervals
        if not label or row["label"] == label
    ]


def test_shares_of_time_and_the_longest_run(tmp_path: Path) -> None:
    times = [0.0, 0.1, 0.2, 1.2, 1.3, 1.4]  # one frame is shown for a second
    (first, second), _ = tables_of(frames("a.mp4", times, {0: "nnhnhh", 3: ".hh.hh"}), tmp_path)
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
    parts = [
        [*frames("a.mp4", [0.0, 0.5], {0: "hh"}), broken],
        [photo],
        frames("b.mp4", [0.0], {0: "n"}),
        [photo],
        frames("c.mp4", [0.0], {}),
    ]
    for index, part in enumerate(parts):
        for row, faces in enumerate(part):
            part[row] = replace(faces, infos=(replace(faces.infos[0], index=index),))
    sources = [*map(Path, ("a.mp4", "p.jpg", "b.mp4", "p.jpg", "c.mp4"))]
    rows, _ = tables_of([*chain.from_iterable(parts)], tmp_path, sources)
    assert [(row["path"], row["frames"], row["time_happiness"]) for row in rows] == [
        ("a.mp4", 2, 1),
        ("b.mp4", 1, 0),
    ]
    assert rows[0]["longest_run_seconds"] == 1.0


EXPECTED = [
    (0, 0.0, 0.2, "neutral"),
    (0, 0.2, 1.2, "happiness"),
    (0, 1.2, 1.3, "neutral"),
    (0, 1.3, 1.5, "happiness"),
    (3, 0.1, 1.2, "happiness"),
    (3, 1.3, 1.4, "happiness"),
]


def test_intervals_come_back_from_csv_and_textgrid(tmp_path: Path) -> None:
    video = frames("a.mp4", [0.0, 0.1, 0.2, 1.2, 1.3, 1.4], {0: "nnhnhh", 3: ".hh.h."})
    for name in ("i.csv", "i.TextGrid"):
        write_tables(video, CLIP, Outputs(tmp_path / "t.csv", intervals=tmp_path / name))
    table = pandas.read_csv(tmp_path / "i.csv")
    assert [*table.columns] == ["path", "track", "start", "end", "label", "confidence"]
    assert table["confidence"].tolist() == pytest.approx([0.7, 0.62, 0.7, 0.645, 0.615, 0.64])
    rows = table[["track", "start", "end", "label"]].itertuples(index=False, name=None)
    assert [*rows] == EXPECTED
    grid = textgrid.openTextgrid(str(tmp_path / "i.TextGrid"), includeEmptyIntervals=True)
    assert grid.tierNames == ("track 0", "track 3")
    entries = [(name, *entry) for name in grid.tierNames for entry in grid.getTier(name).entries]
    gaps = [(3, 0.0, 0.1, ""), (3, 1.2, 1.3, ""), (3, 1.4, 1.5, "")]
    assert entries == [(f"track {track}", *rest) for track, *rest in sorted([*EXPECTED, *gaps])]


def test_times_in_other_programs_count_from_the_start_of_the_file(tmp_path: Path) -> None:
    """As other programs play it: a recording of a broadcast starts at any time."""
    clip = write_numbered(tmp_path / "a.ts", [n / 10 for n in range(600, 603)])
    video = frames(str(clip), [60.5, 60.6, 60.7], {0: "nnh"})
    for name in ("i.csv", "i.TextGrid"):
        write_tables(video, [clip], Outputs(tmp_path / "t.csv", intervals=tmp_path / name))
    table = pandas.read_csv(tmp_path / "i.csv")
    start = table["start"][0]
    assert 0 < start < 1
    assert table["start"].tolist() == pytest.approx([start, start + 0.2])
    assert table["end"].tolist() == pytest.approx([start + 0.2, start + 0.3])
    grid = textgrid.openTextgrid(str(tmp_path / "i.TextGrid"), includeEmptyIntervals=True)
    assert grid.maxTimestamp == pytest.approx(start + 0.3)
    entries = grid.getTier("track 0").entries
    assert [label for *_, label in entries] == ["", "neutral", "happiness"]
    assert entries[1][:2] == pytest.approx((start, start + 0.2))


def test_a_clip_without_a_face_is_an_empty_tier_of_its_length(tmp_path: Path) -> None:
    video = frames("a.mp4", [number / 10 for number in range(50)], {})
    outputs = Outputs(tmp_path / "t.csv", intervals=tmp_path / "none.TextGrid")
    write_tables(video, CLIP, outputs)
    grid = textgrid.openTextgrid(str(tmp_path / "none.TextGrid"), includeEmptyIntervals=True)
    assert grid.maxTimestamp == pytest.approx(5.0)
    (tier,) = grid.tiers
    assert [tuple(entry) for entry in tier.entries] == [(0.0, pytest.approx(5.0), "")]


def test_frames_of_low_confidence_have_no_expression(tmp_path: Path) -> None:
    # happiness reaches the least confidence from frame 5 on
    video = frames("a.mp4", [n / 10 for n in range(10)], {0: "nnnhhhhhhh", 1: "hhhhh....."})
    (first, low), intervals = tables_of(video, tmp_path, min_confidence=0.65)
    assert spans(intervals) == [(0, "neutral", 0.0, 0.3), (0, "happiness", 0.5, 1.0)]
    assert first["frames"] == 10
    assert first["last_seen"] == 0.9
    assert first["time_happiness"] == pytest.approx(5 / 8)
    assert first["longest_run"] == "happiness"
    assert first["longest_run_seconds"] == pytest.approx(0.5)
    assert low["frames"] == 5
    assert low["longest_run"] is None
    assert low["time_neutral"] is None


def test_movements_above_the_threshold_have_intervals(tmp_path: Path) -> None:
    values = [0.2, 0.6, 0.8, 0.5, 0.9, None, 0.7]
    columns = (SMILE, "yaw")
    video = output_frames([v and (v, 90 * v) for v in values], columns)
    _, intervals = tables_of(video, tmp_path, columns=columns, threshold=0.5)
    assert spans(intervals, SMILE) == [(3, SMILE, *t) for t in ((0.1, 0.3), (0.4, 0.5), (0.6, 0.7))]
    means = [row["confidence"] for row in intervals if row["label"] == SMILE]
    assert means == pytest.approx([0.7, 0.9, 0.7])
    grid = tmp_path / "i.TextGrid"
    outputs = Outputs(tmp_path / "t.csv", intervals=grid, threshold=0.5)
    write_tables(video, CLIP, outputs, LABELS, columns)
    names = textgrid.openTextgrid(str(grid), includeEmptyIntervals=True).tierNames
    assert names == ("track 3", f"track 3 {SMILE}")
    _, intervals = tables_of(video, tmp_path, columns=columns)
    assert {row["label"] for row in intervals} == {"neutral"}


@pytest.mark.parametrize(
    ("heads", "columns", "intervals"),
    [
        ((), {"time_neutral", "longest_run", "mean_move_smile", "mean_yaw"}, {"neutral", SMILE}),
        (("expression",), {"time_neutral", "longest_run"}, {"neutral"}),
        (("pose", "movements"), {"mean_move_smile", "mean_yaw"}, {SMILE}),
    ],
)
def test_tables_of_people_have_the_chosen_heads(
    heads: tuple[str, ...], columns: set[str], intervals: set[str], tmp_path: Path
) -> None:
    known = (SMILE, "yaw")
    video = output_frames([(0.6, 54), (0.7, 63)], known)
    threshold = None if heads == ("expression",) else 0.5
    (person,), rows = tables_of(video, tmp_path, columns=known, heads=heads, threshold=threshold)
    about_time = {"longest_run_seconds", "time_happiness"} if "longest_run" in columns else set()
    base = {"path", "track", "first_seen", "last_seen", "frames"}
    assert person.keys() - base == columns | about_time
    assert {row["label"] for row in rows} == intervals


@pytest.mark.parametrize(
    ("heads", "threshold"), [(("expression",), 0.5), (("movements",), None), (("pose",), 0.5)]
)
def test_intervals_of_heads_that_are_left_out_are_an_error(
    heads: tuple[str, ...], threshold: float | None, tmp_path: Path
) -> None:
    known = (SMILE, "yaw")
    with pytest.raises(FerVitError, match="outputs"):
        tables_of([], tmp_path, columns=known, heads=heads, threshold=threshold)


def test_means_of_outputs_are_over_time(tmp_path: Path) -> None:
    columns = (SMILE, "yaw")
    video = output_frames([(v, 90 * v) for v in (0.2, 0.6, 0.7)], columns)
    (row,), _ = tables_of(video, tmp_path, columns=columns)
    assert row["mean_move_smile"] == pytest.approx(0.5)
    turns = [cmath.rect(1, math.radians(90 * value)) for value in (0.2, 0.6, 0.7)]
    assert row["mean_yaw"] == pytest.approx(math.degrees(cmath.phase(sum(turns))))


@pytest.mark.parametrize(("rolls", "mean"), [((179, -177), -179), ((-1, 3), 1), ((-90, 90), None)])
def test_the_mean_of_a_roll_is_a_direction(
    rolls: tuple[float, float], mean: float | None, tmp_path: Path
) -> None:
    """Opposite directions have none."""
    video = output_frames([(roll,) for roll in rolls], ("roll",))
    (row,), _ = tables_of(video, tmp_path, columns=("roll",))
    assert row["mean_roll"] == (mean if mean is None else pytest.approx(mean))


def test_the_mean_of_angles_does_not_depend_on_their_order(tmp_path: Path) -> None:
    """A head that looks around by more than half a turn."""
    angles = [0.0, 100.0, 150.0, -150.0, 170.0]
    expected = math.degrees(cmath.phase(sum(cmath.rect(1, math.radians(a)) for a in angles)))
    for order in (angles, angles[::-1], sorted(angles)):
        video = output_frames([(angle,) for angle in order], ("roll",))
        (row,), _ = tables_of(video, tmp_path, columns=("roll",))
        assert row["mean_roll"] == pytest.approx(expected)


def test_an_unknown_movement_ends_its_interval(tmp_path: Path) -> None:
    video = output_frames([(value,) for value in (0.8, np.nan, np.nan, 0.9, 0.9)], (SMILE,))
    _, intervals = tables_of(video, tmp_path, columns=(SMILE,), threshold=0.5)
    assert spans(intervals, SMILE) == [(3, SMILE, 0.0, 0.1), (3, SMILE, 0.3, 0.5)]


def test_numbers_of_a_summary_have_the_digits_of_their_unit(tmp_path: Path) -> None:
    columns = ("move_jawOpen", *MEANS["smile"], "yaw")
    shares = (1 / 3, 2 / 3, 1 / 7)
    values = [(share, share, 1 - share, 100 * share) for share in shares]
    people = tmp_path / "people.csv"
    video = output_frames(values, HeadOutputs.among(columns).columns, step=1 / 3)
    write_tables(video, CLIP, Outputs(tmp_path / "t.csv", people), LABELS, columns)
    (row,) = csv.DictReader(people.read_text().splitlines())
    assert re.fullmatch(r"0\.\d{1,4}", row["mean_move_jawOpen"])
    assert float(row["mean_smile"]) == pytest.approx(0.5, abs=1e-4)
    assert re.fullmatch(r"\d+\.\d", row["mean_yaw"])


def test_people_of_a_folder_of_tables_are_those_of_one_table(tmp_path: Path) -> None:
    """Of a folder they are read from its tables, in which a person may be away."""
    actor = Actor(7, lambda t: None if 0.2 < t < 0.5 else (160, 90, 100))
    times = [number / 10 for number in range(8)]
    images = [image for image, _ in scene([actor], times, (320, 180))]
    clip = write_video(tmp_path / "a.mp4", images, times)
    model = tiny_recognizer(LABELS, (SMILE, "yaw"))
    options = PhotoOptions(workers=0)
    written = []
    for name in ("faces.parquet", "faces"):
        people = tmp_path / f"people of {name}.csv"
        intervals = tmp_path / f"intervals of {name}.csv"
        table = tmp_path / name
        outputs = Outputs(table, people, intervals, overwrite=False, threshold=0.2)
        if table.suffix:
            photos = model.recognize([clip], options)
            predict_table(model, photos, [clip], options, outputs)
        else:
            predict_folder(model, [clip], options, outputs, 10, ProcessRank())
        written.append((people.read_text(), intervals.read_text()))
    assert written[0] == written[1]
    assert SMILE in written[0][1]
    assert "mean_yaw" in written[0][0]
