import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fer_vit.data.schema as schema
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import SPLITS, Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.geometry import LANDMARKS
from fer_vit.labels import merge_names

NAMES = ("neutral", "anger")
POINTS = np.array([[10.0, 12.0], [30.0, 12.0], [20.0, 20.0], [12.0, 30.0], [28.0, 30.0]])
PNG = encode_png(np.zeros((4, 4), np.uint8))
LARGE = PNG + bytes(schema.EMBED_BELOW)  # stays a file


def rows() -> list[Row]:
    return [
        Row(PNG, "a", "train", "neutral", (3.0, 1.0), POINTS, 0.9),
        Row(PNG, "b", "train", "anger"),
        Row(PNG, "c", "val", "anger", None, POINTS + 1, 0.5),
        Row(PNG, "d", "test"),
    ]


def write(path: Path, *changed: Row) -> Path:
    write_manifest(path, Reading(NAMES, list(changed) or rows()), "made")
    return path


def test_a_manifest_is_read_as_written(tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path / "m.parquet"))
    assert manifest.labels == NAMES
    assert len(manifest) == 4
    assert [len(manifest.split(name)) for name in ("train", "val", "test")] == [2, 1, 1]
    assert manifest.split("val").image_bytes(0) == PNG
    assert manifest.split("val").name(0) == "c"
    assert manifest.column("source") == ["made"] * 4


@pytest.mark.parametrize("name", ["image.png", None])
def test_images_of_one_name_or_none_are_compared_by_content(
    name: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows 1 and 4 are equal, and their content is not kept."""
    images = [encode_png(np.full((4, 4), shade, np.uint8)) for shade in (0, 1, 2, 3, 1)]
    faces = [Row(image, f"{place}.png", "train", "anger") for place, image in enumerate(images)]
    path = write(tmp_path / "m.parquet", *faces)
    table = pq.read_table(path)
    cells = [{"bytes": image, "path": name} for image in images]
    column = pa.array(cells, table.schema.field("image").type)
    place = table.schema.get_field_index("image")
    pq.write_table(table.set_column(place, table.schema.field("image"), column), path)

    Manifest.read(path)
    (line,) = [record.message for record in caplog.records if record.name == "fer_vit"]
    assert "1 face with 1 further row " in line
    assert "0 of them in several splits" in line
    assert (name or "row 1") in line


def test_rows_of_the_same_face_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    face = Row(PNG, "a", "train", "anger")
    moved = replace(face, split="val")
    named_alike = [replace(face, name="b"), replace(face, name="b", image=LARGE)]
    Manifest.read(write(tmp_path / "once.parquet", face, *named_alike))
    assert caplog.messages == []

    Manifest.read(write(tmp_path / "m.parquet", face, moved, *named_alike, *named_alike[:1] * 2))
    (line,) = caplog.messages
    assert re.findall(r"\d+ \w+", line) == ["2 faces", "3 further", "1 of"]
    assert "(a, b)" in line


def test_a_manifest_has_targets_and_landmarks_of_its_rows(tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path / "m.parquet"))
    assert manifest.targets() is None  # the last has no label
    assert np.allclose(manifest.split("train").targets(), [[0.75, 0.25], [0, 1]])
    landmarks = manifest.landmarks()
    assert np.allclose(landmarks[[0, 2]], [POINTS, POINTS + 1])
    assert np.isnan(landmarks[[1, 3]]).all()


def test_a_manifest_has_the_layout_of_hugging_face_and_metadata(tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path / "m.parquet"))
    assert manifest.table["image"][0].as_py() == {"bytes": PNG, "path": "a"}
    meta = json.loads(manifest.table.schema.metadata[b"fer_vit"])
    assert meta["labels"] == list(NAMES)
    assert meta["landmarks"] == list(LANDMARKS)
    merged = manifest.merge_labels({"neutral": "calm", "anger": "anger"})
    merged.write(tmp_path / "n.parquet")
    for name in ("m", "n"):
        written = pq.read_schema(tmp_path / f"{name}.parquet")
        features = json.loads(written.metadata[b"huggingface"])["info"]["features"]
        assert features == {"image": {"_type": "Image"}}


@pytest.mark.parametrize("given", [{"extra": {"person": "anna"}}, {"targets": {"yaw": 1.0}}])
def test_a_column_of_a_row_that_the_reading_does_not_declare_is_named(
    given: dict, tmp_path: Path
) -> None:
    row = replace(rows()[0], **given)
    (column,) = [*row.extra, *row.targets]
    with pytest.raises(FerVitError, match=f"a: .*{column}.*Reading"):
        write_manifest(tmp_path / "m.parquet", Reading(NAMES, [row]), "made")
    assert not (tmp_path / "m.parquet").exists()


def test_a_copy_lies_where_its_image_files_are(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.png").write_bytes(LARGE)
    write(tmp_path / "b" / "m.parquet", Row(tmp_path / "b" / "x.png", "x", "train"))
    files = Manifest.read(tmp_path / "b" / "m.parquet")
    files.write(tmp_path / "b" / "copy.parquet")
    assert Manifest.read(tmp_path / "b" / "copy.parquet").image_bytes(0) == files.image_bytes(0)
    with pytest.raises(FerVitError, match="relative to its folder"):
        files.write(tmp_path / "a.parquet")
    with pytest.raises(FerVitError, match="would replace"):
        files.write(tmp_path / "b" / "m.parquet")


def test_columns_of_the_data_sets_own_and_near_duplicates(tmp_path: Path) -> None:
    given = []
    for row in rows():
        extra = {"age": "3-9"} if row.name == "c" else {"race": "Indian"}
        given.append(replace(row, extra=extra))
    given[2].near_duplicate = True
    write_manifest(tmp_path / "m.parquet", Reading(NAMES, given, extra=("age", "race")), "made")
    Manifest.read(tmp_path / "m.parquet").write(tmp_path / "n.parquet")
    for name in ("m", "n"):
        manifest = Manifest.read(tmp_path / f"{name}.parquet")
        assert manifest.column("age") == [None, None, "3-9", None]
        assert manifest.split("train").column("race") == ["Indian", "Indian"]
        assert [manifest.near_duplicates(split).tolist() for split in SPLITS] == [
            [False, False],
            [True],
            [False],
        ]
    with pytest.raises(FerVitError, match=r"`gender`.* image, .*, near_duplicate, age, race"):
        manifest.column("gender")


@pytest.mark.parametrize(("embed", "inside"), [("auto", [True, False]), ("always", [True, True])])
def test_small_images_go_inside_and_paths_are_relative(
    tmp_path: Path, embed: str, inside: list[bool]
) -> None:
    small = tmp_path / "images" / "small.png"
    large = tmp_path / "images" / "large.png"
    small.parent.mkdir()
    small.write_bytes(PNG + bytes(schema.EMBED_BELOW - 1 - len(PNG)))
    large.write_bytes(PNG + bytes(schema.EMBED_BELOW - len(PNG)))
    reading = Reading(NAMES, [Row(path, path.name, "train", "anger") for path in (small, large)])
    write_manifest(tmp_path / "m.parquet", reading, "made", embed)
    table = pq.read_table(tmp_path / "m.parquet")
    images = table.column("image").to_pylist()
    assert [image["bytes"] is not None for image in images] == inside
    assert [image["path"] for image in images] == [
        path.name if embedded else f"images/{path.name}"
        for path, embedded in zip((small, large), inside, strict=True)
    ]
    manifest = Manifest.read(tmp_path / "m.parquet")
    assert [manifest.image_bytes(row) for row in range(2)] == [
        small.read_bytes(),
        large.read_bytes(),
    ]


OUTSIDE = ["/etc/passwd", "a/../../x.png", "..", "C:\\x.png", "\\\\host\\x.png", "a\\..\\x.png"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_manifest_names_no_file_outside_of_its_folder(tmp_path: Path, path: str) -> None:
    kept = [{"bytes": PNG, "path": path}] * 3
    assert (
        len(Manifest.read(broken(tmp_path, image=[*kept, {"bytes": None, "path": "a/..b/c..png"}])))
        == 4
    )
    with pytest.raises(FerVitError, match=r"row 3 \(from 0\), column `image`"):
        Manifest.read(broken(tmp_path, image=[*kept, {"bytes": None, "path": path}]))


def test_invalid_unicode(tmp_path: Path) -> None:
    table = pq.read_table(write(tmp_path / "m.parquet"))
    labels = pa.Array.from_buffers(pa.string(), 4, pa.array([b"\xff"] * 4).buffers())
    pq.write_table(table.set_column(2, "label", labels), tmp_path / "m.parquet")
    with pytest.raises(FerVitError, match="Invalid UTF8"):
        Manifest.read(tmp_path / "m.parquet")


def test_images_outside_of_the_folder_must_go_inside_the_manifest(tmp_path: Path) -> None:
    image = tmp_path / "images" / "a.png"
    image.parent.mkdir()
    image.write_bytes(LARGE)
    reading = Reading(NAMES, [Row(image, "a", "train")])
    for out in (tmp_path / "out", tmp_path / "images" / "deeper"):
        with pytest.raises(FerVitError, match=r"`embed=.always.`"):
            write_manifest(out / "m.parquet", reading, "made")
        write_manifest(out / "m.parquet", reading, "made", "always")
        assert Manifest.read(out / "m.parquet").image_bytes(0) == LARGE
    odd = tmp_path / os.fsdecode(b"\xff.png")
    odd.write_bytes(LARGE)
    with pytest.raises(FerVitError, match="is not Unicode"):
        write(tmp_path / "m.parquet", Row(odd, "a", "train"))


def broken(tmp_path: Path, **columns: list[object]) -> Path:
    """Writes the four rows with some columns changed."""
    table = pq.read_table(write(tmp_path / "m.parquet"))
    for name, values in columns.items():
        place = table.column_names.index(name)
        field = table.schema.field(name)
        table = table.set_column(place, field, pa.array(values, field.type))
    pq.write_table(table, tmp_path / "m.parquet")
    return tmp_path / "m.parquet"


GOOD = POINTS.tolist()


@pytest.mark.parametrize(
    ("column", "values", "row", "words"),
    [
        (
            "image",
            [{"bytes": PNG, "path": "a"}] * 3 + [{"bytes": None, "path": None}],
            3,
            "image bytes",
        ),
        (
            "split",
            ["train", "validation", "val", "test"],
            1,
            "train, val, test.*`validation`",
        ),
        ("label", ["neutral", "anger", "joy", None], 2, "neutral, anger.*`joy`"),
        ("votes", [None, [1.0], None, None], 1, r"2 votes, but got \[1.0\]"),
        ("votes", [None, None, [0.0, 0.0], None], 2, "not all 0"),
        ("votes", [[1.0, 1.0], None, [2.0, -1.0], None], 2, "not negative"),
        ("votes", [None, None, None, [1.0, float("nan")]], 3, "not negative"),
        ("landmarks", [GOOD, None, [*GOOD[:4], [1.0]], None], 2, "5 points"),
        ("landmarks", [None, None, None, [*GOOD[:4], [1.0, float("inf")]]], 3, "5 points"),
        ("face", [0, 0, None, 0], 2, "a face index"),
    ],
)
def test_a_wrong_row_is_named(
    tmp_path: Path, column: str, values: list[object], row: int, words: str
) -> None:
    path = broken(tmp_path, **{column: values})
    with pytest.raises(
        FerVitError,
        match=rf"m.parquet, row {row} \(from 0\), column `{column}`: expected .*{words}",
    ):
        Manifest.read(path)


def test_a_wrong_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    with pytest.raises(FerVitError, match=r"m\.parquet.*`fer-vit prepare"):
        Manifest.read(path)
    path.write_bytes(b"PAR1 and text")
    with pytest.raises(FerVitError, match=r"Parquet .*`fer-vit prepare`"):
        Manifest.read(path)
    table = pq.read_table(write(path))
    pq.write_table(table.drop_columns("votes"), path)
    with pytest.raises(FerVitError, match="column `votes`"):
        Manifest.read(path)
    pq.write_table(table.set_column(1, "split", pa.array([1, 2, 3, 4])), path)
    with pytest.raises(FerVitError, match=r"column `split`: .*string.*int64"):
        Manifest.read(path)


@pytest.mark.parametrize(
    ("cells", "reads"),
    [
        (pa.array(["x"] * 4), True),
        (pa.array([30, None, 40, 50], pa.int8()), True),
        (pa.array([0.5] * 4, pa.float64()), True),
        (pa.array([True] * 4), True),
        (pa.nulls(4), True),
        (pa.array(["x"] * 4).dictionary_encode(), True),
        (pa.array([b"x"] * 4), False),
        (pa.array([[1]] * 4), False),
        (pa.array([{"a": 1}] * 4), False),
    ],
)
def test_more_columns_have_plain_cells(cells: pa.Array, reads: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "m.parquet")
    pq.write_table(pq.read_table(path).append_column("age", cells), path)
    if reads:
        assert Manifest.read(path).column("age") == cells.to_pylist()
        return
    with pytest.raises(FerVitError, match=r"column `age`: expected a text, number or boolean"):
        Manifest.read(path)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (None, "metadata `fer_vit`"),
        (json.dumps({"labels": {"a": 1}, "landmarks": LANDMARKS}), "metadata `fer_vit`"),
        (json.dumps({"labels": ["a", "a"], "landmarks": LANDMARKS}), "labels that differ"),
        (json.dumps({"labels": ["a"], "landmarks": ["eye"]}), "expected the landmarks right_eye"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, meta: str | None, words: str) -> None:
    table = pq.read_table(write(tmp_path / "m.parquet"))
    pq.write_table(
        table.replace_schema_metadata(meta and {"fer_vit": meta}), tmp_path / "m.parquet"
    )
    with pytest.raises(FerVitError, match=words):
        Manifest.read(tmp_path / "m.parquet")


MERGE = {
    "happiness": "positive",
    "neutral": "neutral",
    "sadness": "negative",
    "anger": "negative",
    "fear": None,
}
ROWS = [
    Row(PNG, "a", "train", "happiness", (1.0, 3.0, 0.0, 0.0, 4.0)),
    Row(PNG, "b", "train", "sadness", (0.0, 0.0, 1.0, 2.0, 0.0)),
    Row(PNG, "c", "train", "anger"),
    Row(PNG, "d", "train", "fear", (0.0, 1.0, 0.0, 0.0, 2.0)),
    Row(PNG, "e", "val", "neutral", (0.0, 0.0, 0.0, 0.0, 1.0)),
    Row(PNG, "f", "test"),
]
FIVE = ("neutral", "happiness", "sadness", "anger", "fear")


@pytest.fixture
def five(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "m.parquet", Reading(FIVE, ROWS), "made")
    return tmp_path / "m.parquet"


def test_votes_add_up_and_faces_are_left_out(five: Path) -> None:
    rows = Manifest.read(five).merge_labels(MERGE)
    assert rows.labels == ("positive", "neutral", "negative")
    assert [rows.name(row) for row in range(len(rows))] == ["a", "b", "c", "e", "f"]
    assert rows.column("label") == ["positive", "negative", "negative", "neutral", None]
    assert rows.split("train").targets() == pytest.approx(
        np.array([[0.75, 0.25, 0], [0, 0, 1], [0, 0, 1]])
    )
    # no vote is left: by its label
    assert rows.split("val").targets() == pytest.approx(np.array([[0, 1, 0]]))


def test_what_the_merge_does_not_name(five: Path) -> None:
    with pytest.raises(FerVitError, match=r"neutral, anger .*merge"):
        Manifest.read(five).merge_labels(
            {k: v for k, v in MERGE.items() if k not in ("neutral", "anger")}
        )
    # new labels stay, absent ones do not matter
    assert merge_names(("positive", "fear"), MERGE)[0] == ("positive",)
    with pytest.raises(FerVitError, match="expected 1 to 1,000 labels"):
        merge_names(("fear",), MERGE)


def test_folds_divide_the_training_faces_and_copies_stay_together(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Of 300 training images each fifth is there twice, and ten are in other splits, too."""
    given = []
    for number in range(300):
        image = encode_png(rng.integers(256, size=(4, 4), dtype=np.uint8))
        copies = 2 if number % 5 == 0 else 1
        given += [Row(image, f"{number}-{copy}", "train", "anger") for copy in range(copies)]
        given += [
            Row(image, f"{number}-{split}", split, "anger")
            for split in ("val", "test")
            if number < 10
        ]
    rows = Manifest.read(write(tmp_path / "m.parquet", *given))
    folds = np.array([in_fold(rows, f"{index}/3") for index in range(3)])
    split = np.array(rows.table["split"].to_pylist())
    assert folds.sum(0).tolist() == (split == "train").astype(int).tolist()
    assert (folds.sum(1) > 70).all()
    places: dict[bytes, set[int]] = {}
    for row in np.flatnonzero(split == "train").tolist():
        places.setdefault(rows.image_bytes(row), set()).add(int(folds[:, row].argmax()))
        assert folds[zlib.crc32(rows.image_bytes(row)) % 3, row]
    assert [len(place) for place in places.values()] == [1] * 300
