"""Tables of predictions that people have sorted, edited, and saved with other programs."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.errors import FerVitError, TableError
from fer_vit.evaluation.read_labelled import EvaluateOptions, read_labelled
from fer_vit.tables.labelled import Labelled
from fer_vit.tables.predicted import leave_out_uncertain, read_predictions

LABELS = ["neutral", "happiness", "surprise"]
Row = dict[str, Any]


def rows_of(clips: int = 2, frames: int = 6) -> list[Row]:
    """Frames of clips with a face each, as `predict` writes them, with columns of a user."""
    rows = []
    for clip in range(clips):
        for frame in range(frames):
            label = LABELS[(frame // 2 + clip) % 3]
            shares = {name: 0.86 if name == label else 0.07 for name in LABELS}
            row = {"path": f"v/{clip}.mp4", "status": "ok", "frame": frame, "seconds": frame / 5}
            row |= {"track": 0, "face": 0, "label": label, "confidence": 0.86, "ambiguous": True}
            row |= {"label_smoothed": label, "condition": "ab"[clip % 2], "subject": f"s{clip}"}
            row |= {f"p_{name}": share for name, share in shares.items()}
            rows.append(row | {f"smoothed_{name}": share for name, share in shares.items()})
    return rows


def write(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def save_workbook(path: Path, rows: Sequence[Row]) -> None:
    book = openpyxl.Workbook()
    book.active.append(list(rows[0]))
    for row in rows:
        book.active.append(list(row.values()))
    book.save(path)


def same(first: Labelled, second: Labelled) -> bool:
    assert first.columns.keys() == second.columns.keys()
    equal = [(first.columns[name] == second.columns[name]).all() for name in first.columns]
    order = [second.labels.index(label) for label in first.labels]
    shares = second.probabilities[:, order]
    return all(equal) and bool(np.allclose(first.probabilities, shares, atol=1e-6))


WRITERS: dict[str, Callable[[Path, list[Row]], object]] = {
    "plain.csv": write,
    "pandas.csv": lambda path, rows: pd.DataFrame(rows).to_csv(path),
    "german.csv": lambda path, rows: (
        pd.DataFrame(rows)
        .replace({True: "TRUE"})
        .to_csv(path, sep=";", decimal=",", encoding="cp1252", index=False)
    ),
    "excel.txt": lambda path, rows: pd.DataFrame(rows).to_csv(path, sep="\t", encoding="utf-16"),
    "quoted.csv": lambda path, rows: pd.DataFrame(rows).to_csv(path, decimal=",", index=False),
    "t.xlsx": save_workbook,
    "t.parquet": lambda path, rows: pd.DataFrame(rows).to_parquet(path),
    "t.jsonl": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    "sorted.csv": lambda path, rows: write(path, sorted(rows, key=lambda row: row["label"])),
    "backwards.parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows[::-1]), path),
    "columns.csv": lambda path, rows: write(
        path, [dict(sorted(row.items(), reverse=True)) for row in rows]
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_program_and_order_gives_the_same_faces(name: str, tmp_path: Path) -> None:
    rows = rows_of()
    expected = read_predictions(write(tmp_path / "expected.csv", rows), videos=True)
    WRITERS[name](tmp_path / name, rows)
    predictions = read_predictions(tmp_path / name, videos=True)
    assert same(predictions, expected)
    assert {*predictions.labels} == {*expected.labels}
    assert predictions.paths.tolist() == sorted(predictions.paths.tolist())
    assert predictions.columns["frame"].tolist() == [*range(6)] * 2
    assert predictions.columns["ambiguous"].tolist() == [True] * 12
    assumed = [note for note in predictions.notes if note.startswith(name)]
    assert len(assumed) == (name in ("pandas.csv", "german.csv", "excel.txt", "quoted.csv"))


def test_what_was_assumed_is_one_line(tmp_path: Path) -> None:
    WRITERS["german.csv"](tmp_path / "g.csv", rows_of())
    (note,) = read_predictions(tmp_path / "g.csv", videos=True).notes
    for words in ("g.csv", "semicolons", "decimal commas"):
        assert words in note


def test_seconds_order_frames_without_numbers(tmp_path: Path) -> None:
    rows = [
        {name: cell for name, cell in row.items() if name not in ("frame", "label_smoothed")}
        for row in rows_of()
    ]
    faces = read_predictions(write(tmp_path / "t.csv", rows[::-1]), videos=True)
    assert faces.columns["seconds"].tolist() == [row["seconds"] for row in rows]


def photo(path: str, happiness: float = 0.75, **cells: Any) -> Row:
    row = {"path": path, "face": 0, "confidence": happiness, "p_happiness": happiness}
    return row | {"p_anger": 1 - happiness} | cells


@pytest.mark.parametrize(
    "rows",
    [
        [photo("a.png"), photo("b.png"), photo("a.png", 0.5)],
        [photo("a.png", face=1), photo("a.png", face=1)],
        [photo("a.png", frame=1), photo("a.png", frame=2), photo("a.png", 0.9, frame=1)],
        [photo("a.png", seconds=1), photo("a.png", seconds=2), photo("a.png", seconds=1)],
        [{"path": "a.png", "confidence": 1, "p_fear": 0.75, "p_anger": 0.25}] * 2,
        [dict.fromkeys(photo("a.png")) | {"path": "a.png"}] * 2,  # without a face
    ],
)
def test_a_face_that_is_there_twice_is_refused(rows: list[Row], tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(FerVitError, match=rf"t\.csv, row {len(rows)} .*a\.png") as error:
        read_predictions(path, videos=True)
    assert "duplicate" in str(error.value)


def test_faces_of_a_photo_need_no_number(tmp_path: Path) -> None:
    rows = [photo("a.png", 0.6), photo("a.png", 0.9), photo("b.png", 0.7)]
    for row in rows:
        del row["face"]
    faces = read_predictions(write(tmp_path / "t.csv", rows))
    assert faces.columns["confidence"].tolist() == [0.9, 0.6, 0.7]  # the surest first


def test_many_equal_rows_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    """Half a million rows in a few kilobytes."""
    rows = 500_000
    columns = {
        name: pa.array([cell]).take(pa.array(np.zeros(rows, np.int32)))
        for name, cell in photo("a.png").items()
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", compression="zstd")
    with pytest.raises(FerVitError, match="duplicate"):
        read_predictions(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"face": "1e999"}, "row 2 .*`face`.*1e999"),
        ({"face": "0.5"}, "row 2 .*whole number.*`face`"),
        ({"confidence": "sure"}, "row 2 .*`confidence`.*sure"),
        ({"p_anger": "0,25"}, "t.csv.*0,25"),
        ({"p_anger": "25%"}, "row 2 .*`p_anger`.*25%"),
        ({"p_anger": 0.5}, "row 2 .*happiness, anger .* 1"),
        ({"p_anger": ""}, "row 2 .*happiness, anger .* 1"),
        ({"p_anger": "²"}, "row 2 .*`p_anger`"),
        ({"path": " "}, "row 2 .*path"),
        ({"seconds": "inf"}, "row 2 .*`seconds`"),
        ({"seconds": "1e300"}, "row 2 .*`seconds`"),
        ({"frame": "", "seconds": 1}, "row 2 .*`frame`"),
        ({"ambiguous": "perhaps"}, "row 2 .*`ambiguous`.*perhaps"),
        ({"label": "joy"}, "row 2 .*`label`.*joy"),
        ({"label": "\x1b[2J"}, "row 2 .*`label`"),
    ],
)
def test_a_cell_that_does_not_fit_is_named(change: Row, words: str, tmp_path: Path) -> None:
    plain = photo("a.png", frame=0, seconds=0, ambiguous="TRUE", label="happiness")
    path = write(tmp_path / "t.csv", [plain, plain | {"path": "b.png"} | change])
    with pytest.raises(FerVitError, match=words) as error:
        read_predictions(path, videos=True)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "name", ["path", "confidence", "p_happiness", *("frame", "seconds", "track", "face")]
)
def test_a_deleted_column_is_named(name: str, tmp_path: Path) -> None:
    rows = [{key: cell for key, cell in row.items() if key != name} for row in rows_of()]
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(FerVitError, match=r"t\.csv") as error:
        read_predictions(path, videos=True)
    assert name.removeprefix("p_") in str(error.value) or name == "p_happiness"


@pytest.mark.parametrize("name", ["track", "smoothed_neutral", "seconds"])
def test_a_deleted_cell_of_a_clip_is_named(name: str, tmp_path: Path) -> None:
    rows = rows_of()
    rows[3][name] = None
    if name == "seconds":
        faces = read_predictions(write(tmp_path / "t.csv", rows), videos=True)
        assert faces.columns["seconds"][3] is None  # ends an episode
        return
    with pytest.raises(FerVitError, match=rf"row 4 .*`{name}`"):
        read_predictions(write(tmp_path / "t.csv", rows), videos=True)


def rows_with_unsure_frames() -> list[Row]:
    """The first frame of each clip has lower averages, below `--min_confidence`: no label."""
    rows = rows_of()
    for row in rows:
        if row["frame"] == 0:
            row |= {"smoothed_neutral": 0.5, "smoothed_happiness": 0.3, "smoothed_surprise": 0.2}
            row["label_smoothed"] = None
    return rows


def test_faces_below_the_least_confidence_have_no_smoothed_label(tmp_path: Path) -> None:
    faces = read_predictions(write(tmp_path / "t.csv", rows_with_unsure_frames()), videos=True)
    labels = faces.columns["label_smoothed"].tolist()
    assert [place for place, label in enumerate(labels) if label is None] == [0, 6]
    (note,) = [note for note in faces.notes if "--min_confidence" in note]
    assert "2 of 12 faces" in note


@pytest.mark.parametrize("times", [True, False])
def test_photos_may_have_a_column_of_smoothed_labels(times: bool, tmp_path: Path) -> None:
    """A table of photos and clips has it; columns of times without any time may be left out."""
    rows = rows_of()[:2]
    for number, row in enumerate(rows):
        row |= {"path": f"{number}.jpg", "frame": None, "seconds": None, "track": None}
        row["label_smoothed"] = None
        if not times:
            del row["frame"], row["seconds"], row["track"]
    path = write(tmp_path / "t.csv", rows)
    for videos in (False, True):
        if videos and not times:
            continue  # durations need the times
        faces = read_predictions(path, videos=videos)
        assert faces.predicted.all()
        assert not [note for note in faces.notes if "--min_confidence" in note]


def test_a_deleted_label_of_a_clip_is_named(tmp_path: Path) -> None:
    """Frames with a lower average have their label."""
    rows = rows_with_unsure_frames()
    rows[0]["label_smoothed"] = "neutral"
    rows[6] |= {"smoothed_neutral": 0.6, "smoothed_happiness": 0.2}
    with pytest.raises(FerVitError, match=r"row 7 .*`label_smoothed`"):
        read_predictions(write(tmp_path / "t.csv", rows), videos=True)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ({"label_smoothed": "surprise"}, "most probable smoothed expression in `label_smoothed`"),
        ({"smoothed_neutral": 7}, "smoothed probabilities"),
        ({"smoothed_neutral": 4.0, "smoothed_happiness": -3.07}, "smoothed probabilities"),
        ({"face": None}, "value in `face`"),
    ],
)
def test_edited_averages_of_clips_are_refused(
    edit: dict[str, object], named: str, tmp_path: Path
) -> None:
    """Series and durations of `compare` come from them."""
    rows = rows_with_unsure_frames()
    rows[1] |= edit
    with pytest.raises(TableError, match=f"row 2 .*{named}"):
        read_predictions(write(tmp_path / "t.csv", rows), videos=True)
    if "smoothed_neutral" in edit:  # series need no smoothed label
        for row in rows:
            del row["label_smoothed"]
        with pytest.raises(TableError, match=f"row 2 .*{named}"):
            read_predictions(write(tmp_path / "t.csv", rows), videos=True)


def test_clips_beside_photos_and_rounded_averages_are_accepted(tmp_path: Path) -> None:
    """A photo has no average, and of two equal averages either has the label."""
    rows = rows_of()
    averages = {"smoothed_neutral": 0.34, "smoothed_happiness": 0.34, "smoothed_surprise": 0.321}
    rows[0] |= averages | {"label_smoothed": "happiness"}
    empty = dict.fromkeys(("frame", "seconds", "track", "label_smoothed", *averages))
    rows.append(rows[0] | empty | {"path": "a.png"})
    faces = read_predictions(write(tmp_path / "t.csv", rows), videos=True)
    assert faces.predicted.all()


def test_a_column_of_persons_is_no_probability(tmp_path: Path) -> None:
    rows = [photo("a.png", p_id="S1"), photo("b.png", p_id="S2")]
    with pytest.raises(FerVitError, match=r"column `p_id` of .*Rename"):
        read_predictions(write(tmp_path / "t.csv", rows))


@pytest.mark.parametrize("name", ["NA", "None", "null", "-", "?", "1.0", "de\u0301gou\u0302t"])
def test_an_expression_may_have_any_name(name: str, tmp_path: Path) -> None:
    shares = {f"p_{name}": 0.75, "p_anger": 0.25}
    row = {"path": "a.png", "face": 0, "label": name, "confidence": 0.75} | shares
    table = write(tmp_path / "t.csv", [row])
    faces = read_predictions(table)
    assert faces.labels == [name, "anger"]
    assert faces.columns["label"].tolist() == [name]

    truth = write(tmp_path / "truth.csv", [{"path": "a.png", "label": normalize("NFC", name)}])
    assert read_labelled(EvaluateOptions(table, labels=truth)).correct.tolist() == [True]


def test_rows_without_a_face_are_counted(tmp_path: Path) -> None:
    empty = dict.fromkeys(("face", "confidence", "p_happiness", "p_anger"))
    rows = [photo("a.png", status="ok")]
    rows += [{"path": f"{name}.png"} | empty | {"status": name} for name in ("damaged", "NA")]
    faces = read_predictions(write(tmp_path / "t.csv", rows))
    (note,) = faces.notes
    assert "2 of 3 rows" in note
    assert "1 damaged" in note


def test_labels_that_people_changed_are_refused(tmp_path: Path) -> None:
    given = [("a.png", 0.75, "happiness"), ("b.png", 0.75, "anger"), ("c.png", 0.5, "anger")]
    rows = [photo(path, share, label=label) for path, share, label in given]
    with pytest.raises(TableError, match=r"row 2 .*most probable expression in `label`"):
        read_predictions(write(tmp_path / "t.csv", rows))
    del rows[1]  # the label of the other row has the same probability as the other expression
    assert len(read_predictions(write(tmp_path / "t.csv", rows)).paths) == 2


def test_missing_words_of_users_are_counted(tmp_path: Path) -> None:
    rows = [photo(f"{index}.png", who=who) for index, who in enumerate(["NA", "a", " n/a ", "NA "])]
    faces = read_predictions(write(tmp_path / "t.csv", rows))
    assert faces.columns["who"].tolist() == [None, "a", None, None]
    (note,) = faces.notes
    assert "2 NA, 1 n/a" in note


@pytest.mark.parametrize(
    ("record", "facts"),
    [
        ('{"model": "m", "version": "\\u001b[2J", "x": 1}', {"model": "m", "x": "1"}),
        ("{}", {}),
        ("[1]", None),
        ("5", None),
        ("{", None),
        ("[" * 100_000, None),
        ('{"a":' * 100_000, None),
        ("9" * 5000, None),
    ],
)
def test_the_record_of_a_table_is_untrusted(
    record: str, facts: dict[str, str] | None, tmp_path: Path
) -> None:
    table = pa.Table.from_pylist([photo("a.png")])
    pq.write_table(table.replace_schema_metadata({"predictions": record}), tmp_path / "t.parquet")
    if facts is None:
        with pytest.raises(FerVitError, match=r"t\.parquet.*cannot be read") as error:
            read_predictions(tmp_path / "t.parquet")
        assert len(str(error.value)) < 500
        return
    read = read_predictions(tmp_path / "t.parquet").facts
    assert facts.items() <= read.items()
    assert all(fact.isprintable() for fact in read.values())


def test_rows_say_what_made_them(tmp_path: Path) -> None:
    rows = [photo(f"{index}.png", model="m", detector=f"d{index}") for index in range(2)]
    faces = read_predictions(write(tmp_path / "t.csv", rows))
    assert faces.facts == {"model": "m", "detector": "d0 and d1"}
    (note,) = faces.notes
    assert "`detector`: d0, d1" in note


def test_an_uncertain_face_beside_a_certain_one_is_left_out_and_counted(tmp_path: Path) -> None:
    scores = {
        "both.jpg": (0.95, 0.72),
        "alone.jpg": (0.75,),
        "sure.jpg": (0.8,),
        "crop.jpg": (0.0,),
    }
    rows = []
    for path, photo_scores in scores.items():
        for face, score in enumerate(photo_scores):
            shares = {"p_neutral": 0.9, "p_happiness": 0.1}
            row = {
                "path": path,
                "status": "ok",
                "face": face,
                "label": "neutral",
                "confidence": 0.9,
            }
            warning = "small face; uncertain face" if 0 < score < 0.8 else None
            rows.append(row | shares | {"score": score, "warning": warning})
    faces = read_predictions(write(tmp_path / "faces.csv", rows))
    assert any("2 of 5 faces are uncertain" in note for note in faces.notes)
    kept = leave_out_uncertain(faces)
    assert [*zip(kept.paths, kept.columns["score"], strict=True)] == [
        ("alone.jpg", 0.75),
        ("both.jpg", 0.95),
        ("crop.jpg", 0.0),
        ("sure.jpg", 0.8),
    ]
    assert any("1 uncertain" in note for note in kept.notes)
    assert leave_out_uncertain(kept) is kept


def test_uncertain_faces_of_videos_stay(tmp_path: Path) -> None:
    rows = [row | {"warning": "uncertain face" if row["frame"] % 2 else ""} for row in rows_of()]
    faces = read_predictions(write(tmp_path / "clips.csv", rows), videos=True)
    assert leave_out_uncertain(faces) is faces


def without_frame_numbers(rows: list[Row]) -> list[Row]:
    """Rows of videos, of which seconds are the only column of time."""
    left = {"frame", "label_smoothed", *(f"smoothed_{name}" for name in LABELS)}
    return [{name: cell for name, cell in row.items() if name not in left} for row in rows]


def test_frames_of_videos_are_known_by_their_seconds_as_well(tmp_path: Path) -> None:
    rows = without_frame_numbers(rows_of())
    rows = [row | {"warning": "uncertain face" if row["seconds"] else ""} for row in rows]
    table = write(tmp_path / "clips.csv", rows)
    faces = read_predictions(table, videos=True)
    assert leave_out_uncertain(faces) is faces
    with pytest.raises(TableError, match="frames of videos"):
        read_predictions(table)


@pytest.mark.parametrize("spell", ["./v/{}", "v//{}", "v\\{}", " v/{}", "./v/./{}"])
def test_another_spelling_of_a_path_is_the_same_clip(spell: str, tmp_path: Path) -> None:
    rows = rows_of(1)
    name = rows[0]["path"].removeprefix("v/")
    faces = read_predictions(
        write(
            tmp_path / "t.csv",
            [*rows[:3], *({**row, "path": spell.format(name)} for row in rows[3:])],
        ),
        videos=True,
    )
    assert {*faces.paths} == {rows[0]["path"]}
    again = write(tmp_path / "twice.csv", [*rows, rows[0] | {"path": spell.format(name)}])
    with pytest.raises(FerVitError, match=r"row 7 .*duplicate"):
        read_predictions(again, videos=True)


def test_a_track_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    rows = rows_of(1)
    path = write(tmp_path / "t.csv", [*rows, rows[0] | {"face": 1}])
    with pytest.raises(FerVitError, match=r"row 7 .*duplicate"):
        read_predictions(path, videos=True)
    read_predictions(
        write(tmp_path / "u.csv", [*rows, rows[0] | {"face": 1, "track": 1}]), videos=True
    )


def test_both_rows_of_a_repeated_face_are_named_by_their_files(tmp_path: Path) -> None:
    rows = rows_of(2)
    parts = [rows[:6], [*rows[6:], rows[7]]]  # the second part has its second row twice
    for number, part in enumerate(parts):
        path = tmp_path / f"part-{number:05d}-of-00002.parquet"
        pd.DataFrame(part).to_parquet(path)
    words = r"part-00001-of-00002\.parquet, row 7 .* row 2 of part-00001-of-00002\.parquet\."
    with pytest.raises(FerVitError, match=words):
        read_predictions(tmp_path, videos=True)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(lambda row: 9 - row["seconds"] * 6, id="fall"),
        pytest.param(lambda row: 5, id="equal"),
        pytest.param(lambda row: (row["seconds"] * 10) % 7, id="wrap"),
    ],
)
def test_seconds_that_do_not_rise_are_refused(seconds: Any, tmp_path: Path) -> None:
    rows = [row | {"seconds": seconds(row)} for row in rows_of()]
    with pytest.raises(FerVitError, match=r"row .*`seconds`.*`frame`"):
        read_predictions(write(tmp_path / "t.csv", rows), videos=True)


def test_seconds_of_swapped_frames_may_fall_a_little(tmp_path: Path) -> None:
    rows = rows_of(1)
    rows[2]["seconds"], rows[3]["seconds"] = rows[3]["seconds"], rows[2]["seconds"]
    assert len(read_predictions(write(tmp_path / "t.csv", rows), videos=True).paths) == 6


@pytest.mark.parametrize("name", ["confidence", "status"])
def test_probabilities_without_confidence_or_status_are_refused(name: str, tmp_path: Path) -> None:
    rows = [photo("a.png", status="ok"), photo("Total", status="ok") | {name: None}]
    with pytest.raises(FerVitError, match=rf"row 2 .*`{name}`"):
        read_predictions(write(tmp_path / "t.csv", rows))
