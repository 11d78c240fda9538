"""The list of columns: complete, without repeats, and what writers use."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fer_vit import fields
from fer_vit.cli import verb_parser
from fer_vit.commands import predict
from fer_vit.faces import Origin, PhotoInfo, Pose, Scheme, found_faces, no_faces
from fer_vit.fields import (
    BOX_COLUMNS,
    INTERVAL_FIELDS,
    MANIFEST_FIELDS,
    NUMBER_FORMATS,
    ORIGIN_FIELDS,
    PEOPLE_FIELDS,
    Field,
    all_face_fields,
    describe_fields,
    face_fields,
    fields_by_name,
    people_fields,
)
from fer_vit.geometry import LANDMARKS
from fer_vit.heads import HEADS, NO_OUTPUTS, HeadOutputs
from tests.helpers.faces import make_faces

FACES = all_face_fields()
TYPES = {"string", "integer", "number", "boolean"}
LISTS = {
    "faces": FACES,
    "people": PEOPLE_FIELDS,
    "intervals": INTERVAL_FIELDS,
    "manifest": MANIFEST_FIELDS,
}


@pytest.mark.parametrize("columns", LISTS.values(), ids=LISTS)
def test_each_column_has_one_entry_with_a_known_unit(columns: tuple[Field, ...]) -> None:
    names = [field.name for field in columns]
    assert len({*names}) == len(names)
    units_of_heads = {head.unit for head in HEADS.values()}
    for field in columns:
        assert field.unit in NUMBER_FORMATS or field.unit in units_of_heads
        assert field.meaning or field.name.endswith("_y")
        assert field.type in TYPES or field in MANIFEST_FIELDS
        format(0.5, field.format)


def test_columns_of_a_table_are_in_order_and_only_those_it_needs() -> None:
    photos = [field.name for field in face_fields(["a", "b"])]
    assert photos[:8] == [
        "path",
        "status",
        "face",
        "label",
        "confidence",
        "ambiguous",
        "warning",
        "p_a",
    ]
    assert not {"frame", "track", "smoothed_a", "move_*", "feature_*"} & {*photos}
    everything = face_fields(
        ["a"], HeadOutputs.among(["move_x", "yaw", "valence"]), videos=True, features=2
    )
    names = [field.name for field in everything]
    assert names.index("move_x") == names.index("roll") + 1
    assert names[-2:] == ["feature_0", "feature_1"]
    assert names.count("yaw") == 1
    assert {"frame", "seconds", "track", "label_smoothed", "smoothed_a", "valence"} < {*names}
    assert [field.name for field in people_fields(["a", "b"])][5:7] == ["time_a", "time_b"]


def test_every_output_of_a_head_has_a_column() -> None:
    names = {name: [*head.outputs] or ["anything"] for name, head in HEADS.items()}
    outputs = HeadOutputs.of_names(names, "all")
    columns = {field.name: field for field in face_fields(["a"], outputs)}
    for output in outputs:
        assert columns[output.column].head == output.head


def test_faces_have_every_column() -> None:
    scheme = Scheme(("a",), HeadOutputs.among(["move_x", "valence", "arousal"]))
    faces = no_faces(scheme=scheme)
    for field in face_fields(scheme.labels, scheme.outputs, videos=True):
        assert faces.column(field.name).shape == (0,)
    assert Origin._fields == tuple(field.name for field in ORIGIN_FIELDS)


def test_each_column_has_one_value_for_each_face() -> None:
    outputs = {name: [0.1, 0.2, 0.3] for name in ("move_x", "yaw", "valence", "arousal")}
    classified = make_faces(["a", "b"], [[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]], outputs=outputs)
    only_found = found_faces([PhotoInfo("a.jpg")], np.zeros(3, np.int64))
    for faces in (classified, only_found):
        for name in fields_by_name(faces.labels, faces.scheme.outputs):
            assert faces.column(name).shape == (3,), name


def test_a_mean_of_both_sides_is_a_column_of_faces_and_people() -> None:
    sides = {"move_mouthSmileRight": [0.6, np.nan], "move_mouthSmileLeft": [0.1, 0.5]}
    faces = make_faces(["a"], [[1.0], [1.0]], outputs=sides)
    np.testing.assert_allclose(faces.column("smile"), [0.35, np.nan])
    assert faces[0].smile == pytest.approx(0.35)
    one_side = HeadOutputs.among(["move_mouthSmileLeft"])
    assert "smile" not in [field.name for field in face_fields(["a"], one_side)]
    people = [field.name for field in people_fields(["a"], HeadOutputs.among(sides))]
    assert people[6:9] == ["mean_move_mouthSmileRight", "mean_move_mouthSmileLeft", "mean_smile"]


def test_a_new_column_is_an_entry_with_what_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def width(faces: Any) -> np.ndarray:
        return faces.box[:, 2] - faces.box[:, 0]

    added = Field("width", "number", "pixels", "of the box", compute=width)
    monkeypatch.setattr(fields, "ORIGIN_FIELDS", (*ORIGIN_FIELDS, added))
    box = [[1.0, 2.0, 4.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    # a label of its own: the columns of a scheme are listed once
    faces = make_faces(["wide"], [[1.0], [1.0]], box=box)
    assert faces.column("width").tolist() == [3.0, 2.0]
    assert faces[1].width == 2.0
    assert faces.table()["width"] == [3.0, 2.0]


def test_each_column_has_the_values_of_its_name() -> None:
    numbers = np.arange(10, dtype=float).reshape(1, 5, 2)
    faces = found_faces(
        [PhotoInfo("a.jpg")], np.array([0]), landmarks=numbers, box=numbers[:, :2].reshape(1, 4)
    )
    faces = replace(faces, angles=np.array([[1.0, 2.0, 3.0]]))
    columns = {name: faces.column(name).tolist() for name in fields_by_name((), NO_OUTPUTS)}
    for number, name in enumerate(LANDMARKS):
        assert columns[f"{name}_x"] == [2 * number]
        assert columns[f"{name}_y"] == [2 * number + 1]
    assert [columns[name] for name in BOX_COLUMNS] == [[0], [1], [2], [3]]
    assert [columns[name] for name in Pose._fields] == [[1], [2], [3]]
    origin = Origin(*Origin._fields)
    faces = replace(faces, scheme=Scheme(origin=origin))
    assert [faces.column(name)[0] for name in origin] == [*origin]


def test_landmarks_have_two_columns_each() -> None:
    expected = chain.from_iterable((f"{name}_x", f"{name}_y") for name in LANDMARKS)
    names = [field.name for field in face_fields(["a"])]
    start = names.index(f"{LANDMARKS[0]}_x")
    assert names[start : start + 2 * len(LANDMARKS)] == [*expected]


def test_the_manifest_has_these_columns(drawn: Path) -> None:
    assert pq.read_schema(drawn / "faces.parquet").names == [
        field.name for field in MANIFEST_FIELDS
    ]


def test_the_help_of_predict_lists_every_column() -> None:
    text = verb_parser("predict", predict).format_help()
    assert describe_fields(FACES) in text
    words = text.replace(",", " ").split()
    assert {field.name for field in FACES} <= set(words)
    assert max(map(len, describe_fields(FACES).splitlines())) <= 100
