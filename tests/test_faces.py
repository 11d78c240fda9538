"""The value that all stages share: slices, masks, photos, tables, pickles."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.faces import (
    ARRAYS,
    NO_FACE,
    UNCERTAIN,
    Face,
    Faces,
    Origin,
    PhotoInfo,
    Scheme,
    are_uncertain,
    as_cells,
    as_objects,
    found_faces,
    join_faces,
    no_faces,
)
from fer_vit.fields import face_fields, fields_by_name
from tests.helpers.faces import make_faces

LABELS = ("a", "b")


@pytest.fixture
def faces() -> Faces:
    """Three photos: the first has two faces, the second has no face, the third has one face."""
    return join_faces(
        [
            make_faces(LABELS, [[0.9, 0.1], [0.2, 0.8]], path="1.jpg"),
            make_faces(LABELS, [], path="2.jpg", index=1),
            make_faces(LABELS, [[0.4, 0.6]], path="3.jpg", index=2, outputs=None),
        ]
    )


def test_an_index_of_faces_is_a_face(faces: Faces) -> None:
    assert len(faces) == 3
    assert [face.label for face in faces] == ["a", "b", "b"]
    assert faces[0].path == "1.jpg"
    assert faces[-1].path == "3.jpg"
    assert faces[1].face == 1
    with pytest.raises(IndexError):
        faces[3]
    assert faces[1] in faces
    assert faces.index(faces[1]) == 1


def test_a_part_of_faces_is_faces(faces: Faces) -> None:
    for rest in (faces[1:], faces[[1, 2]], faces[np.array([False, True, True])]):
        assert isinstance(rest, Faces)
        assert rest.path.tolist() == ["1.jpg", "3.jpg"]
        assert [info.path for info in rest.infos] == ["1.jpg", "3.jpg"]
        assert rest.photo.tolist() == [0, 1]
        assert rest.face.tolist() == [1, 0]
    assert faces[faces.confidence > 0.7].label.tolist() == ["a", "b"]
    assert len(faces[:0]) == len(faces[:0].infos) == 0
    assert faces[::-1].path.tolist() == ["3.jpg", "1.jpg", "1.jpg"]


def test_photos_have_their_faces(faces: Faces) -> None:
    photos = faces.photos()
    assert [(photo.path, photo.status, len(photo.faces)) for photo in photos] == [
        ("1.jpg", "ok", 2),
        ("2.jpg", NO_FACE, 0),
        ("3.jpg", "ok", 1),
    ]
    assert photos[2].faces.probabilities.tolist() == [[0.4, 0.6]]
    again = join_faces([photo.faces for photo in photos])
    assert again.infos == faces.infos
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(faces, name))


def test_tables_have_rows_for_photos_without_a_face(faces: Faces) -> None:
    chosen = faces[:].table()
    assert [*chosen] == [field.name for field in face_fields(LABELS)]
    assert chosen["p_b"] == [0.1, 0.8, 0.6]
    full = faces.table()
    assert full["path"] == ["1.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert full["face"] == [0, 1, None, 0]
    assert full["status"][2] == NO_FACE
    assert full["label"] == ["a", "b", None, "b"]
    assert no_faces().table()["path"] == []


def test_faces_in_any_order_have_one_row_each_in_this_order(faces: Faces) -> None:
    for order in ([2, 0, 1], [1, 2, 0], [0, 2, 1]):
        turned = faces[order]
        assert turned.table()["p_b"] == [[0.1, 0.8, 0.6][row] for row in order]
        beside_no_face = (turned + faces.of_photo(1)).table()  # in the order of the photos
        assert beside_no_face["path"] == ["1.jpg", "1.jpg", "3.jpg", "2.jpg"]
        assert sum(len(photo.faces) for photo in turned.photos()) == 3


def test_faces_below_the_least_confidence_are_ambiguous_in_the_chosen_columns(
    faces: Faces,
) -> None:
    chosen = face_fields(LABELS)
    # the confidences are 0.9, 0.8 and 0.6
    rows = faces.rows(chosen, min_confidence=0.7)
    assert [(row.get("label"), row.get("ambiguous")) for row in rows] == [
        ("a", False),
        ("b", False),
        (None, None),  # the photo without a face
        (None, True),
    ]
    paths = faces.rows([chosen[0]], min_confidence=0.7)
    assert [*paths[3]] == [chosen[0].name]


def test_frames_below_the_least_confidence_have_no_smoothed_label(faces: Faces) -> None:
    smoothed = np.array([[0.2, 0.8], [0.6, 0.4], [np.nan, np.nan]])
    rows = replace(faces, smoothed=smoothed).rows(
        face_fields(LABELS, videos=True), min_confidence=0.7
    )
    # the largest smoothed probabilities are 0.8, 0.6 and none
    of_faces = [row for row in rows if row["path"] != "2.jpg"]
    assert [row["label_smoothed"] for row in of_faces] == ["b", None, None]
    assert [row["label"] for row in of_faces] == ["a", "b", None]


def test_a_face_that_is_not_classified_has_no_label(faces: Faces) -> None:
    info = PhotoInfo("a.jpg", source=Path("a.jpg"))
    for scheme in (Scheme(), Scheme(LABELS)):
        unclassified = found_faces([info], np.array([0]), scheme=scheme)
        assert (
            unclassified[0].label is unclassified.label[0] is unclassified[0].label_smoothed is None
        )
        assert unclassified[0].confidence == 0
        assert "label=None" in repr(unclassified[0])


@pytest.mark.parametrize(
    ("sure_score", "expected"),
    [
        (None, [False, False, False, False, False]),
        (0.8, [False, False, True, True, False]),
        (0.5, [False, False, True, False, False]),
    ],
)
def test_a_found_face_is_uncertain_on_the_scale_of_its_detector(
    sure_score: float | None, expected: list[bool]
) -> None:
    score = np.array([np.nan, 0, 0.3, 0.79, 0.8])
    assert are_uncertain(score, sure_score).tolist() == expected
    scheme = Scheme(LABELS, crop_size=48, sure_score=sure_score)
    unclassified = found_faces([PhotoInfo("a.jpg")], np.zeros(5, int), score=score, scheme=scheme)
    unclassified = replace(unclassified, to_crop=np.tile(np.eye(2, 3), (5, 1, 1)))
    assert unclassified.warnings[UNCERTAIN].tolist() == expected
    assert [text == UNCERTAIN for text in unclassified.warning] == expected


@pytest.mark.parametrize("angle", range(3))
@pytest.mark.parametrize(("degrees", "turned"), [(44.0, False), (46.0, True), (-46.0, True)])
def test_each_angle_turns_a_head(angle: int, degrees: float, turned: bool, faces: Faces) -> None:
    angles = np.zeros((3, 3))
    angles[1, angle] = degrees
    warned = ["turned head" in face.warnings for face in replace(faces, angles=angles)]
    assert warned == [False, turned, False]


def test_a_pickled_face_is_small_and_alone(faces: Faces) -> None:
    many = join_faces([faces] * 200)
    face = pickle.loads(pickle.dumps(many[301]))
    assert len(pickle.dumps(many[301])) < 5000
    assert face.probabilities == many[301].probabilities
    assert face.path == many[301].path
    assert face.face == many[301].face
    assert isinstance(pickle.loads(pickle.dumps(many)), Faces)


def test_what_is_unknown_is_none_and_an_empty_cell() -> None:
    info = PhotoInfo("a.jpg", source=Path("a.jpg"))
    faces = found_faces([info], np.array([0]), scheme=Scheme(LABELS))
    face = replace(faces, probabilities=np.array([[0.5, 0.5]]), to_crop=np.eye(2, 3)[None])[0]
    assert face.box is face.landmarks is face.score is face.track is face.pose is None
    assert face.blur is face.label_smoothed is face.frame is face.seconds is None
    assert face.smoothed == face.outputs == {}
    assert face.prediction_set() is face.ambiguous is None
    row = {name: cells[0] for name, cells in face.alone.table().items()}
    assert row["box_left"] is row["yaw"] is row["score"] is row["ambiguous"] is None
    assert as_cells(np.array([1.5, np.nan, np.inf])) == [1.5, None, None]


def test_faces_of_two_models_are_not_joined(faces: Faces) -> None:
    for origin in (Origin("another"), Origin(detector="none"), Origin(fer_vit_version="0.1.0")):
        second = replace(faces, scheme=replace(faces.scheme, origin=origin))
        with pytest.raises(FerVitError, match="one model"):
            join_faces([faces, second])
    empty = no_faces([PhotoInfo("4.jpg", NO_FACE)])
    assert len(join_faces([empty, faces]).infos) == 4


def test_faces_of_several_days_are_joined_with_the_earliest_date(faces: Faces) -> None:
    def of(day: str) -> Faces:
        origin = Origin("model", "yunet", "0.2.0", day)
        return replace(faces, scheme=replace(faces.scheme, origin=origin))

    monday = of("2026-11-23")
    tuesday = of("2026-11-24")
    for joined in (join_faces([monday, tuesday]), join_faces([tuesday, monday])):
        assert len(joined) == 2 * len(faces)
        assert joined.origin == monday.origin
        assert set(joined.table()["predicted_on"]) == {"2026-11-23"}


def test_prediction_sets_of_one_and_of_all_agree(faces: Faces) -> None:
    thresholds = {"90": [0.5, 0.95, 0.1], "95": [0.3, 0.2, 0.2]}
    sure = replace(faces, scheme=replace(faces.scheme, thresholds=thresholds))
    assert [face.prediction_set() for face in sure] == [["a"], ["b"], ["b"]]
    assert sure.prediction_set.tolist() == ["a", "b", "b"]
    assert sure[2].prediction_set(95) == ["a", "b"]
    assert sure[0].prediction_set(90, by_class=True) == ["b"]
    assert sure.ambiguous.tolist() == [face.ambiguous for face in sure] == [False] * 3
    with pytest.raises(FerVitError, match="90 or 95"):
        sure.sets(80)


def test_columns_of_one_and_of_all_agree() -> None:
    scheme = {"move_x": [0.1, 0.2], "valence": [-0.5, 0.5]}
    faces = make_faces(LABELS, [[1.0, 0.0], [0.3, 0.7]], outputs=scheme, smoothed=True)
    columns = {name: faces.column(name) for name in fields_by_name(LABELS, faces.scheme.outputs)}
    for row, face in enumerate(faces):
        assert isinstance(face, Face)
        assert columns["label"][row] == face.label
        assert columns["confidence"][row] == face.confidence
        assert columns["entropy"][row] == pytest.approx(face.entropy)
        assert columns["size"][row] == pytest.approx(face.size)
        assert columns["label_smoothed"][row] == face.label_smoothed
        assert columns["move_x"][row] == face.outputs["move_x"]
        assert columns["smoothed_b"][row] == face.smoothed["b"]
    assert as_objects([None, 1]).tolist() == [None, 1]


def test_a_face_has_the_values_that_it_has_alone() -> None:
    """The columns of all faces, in any order, are those of each face alone."""
    outputs = {"move_x": [0.1, 0.2, np.nan], "valence": [-0.5, 0.5, 0.0]}
    shares = [[1.0, 0.0], [0.3, 0.7], [0.5, 0.5]]
    faces = make_faces(LABELS, shares, outputs=outputs, smoothed=True)[::-1]
    for face in faces:
        for name, column in fields_by_name(LABELS, faces.scheme.outputs).items():
            (alone,) = as_cells(column.values(face.alone))
            (of_all,) = as_cells(faces.column(name)[face._row : face._row + 1])
            assert alone == of_all, name
    assert faces.column("entropy") is faces.column("entropy")
    with pytest.raises(ValueError, match="read-only"):
        faces.column("score")[0] = 0.5
    assert faces.score.flags.writeable
    assert "_computed" in vars(faces)
    assert "_computed" not in vars(pickle.loads(pickle.dumps(faces)))
    assert pickle.loads(pickle.dumps(faces)).column("valence").tolist() == [0.0, 0.5, -0.5]
    with pytest.raises(KeyError):
        faces.column("colour")


def test_photos_of_faces_in_any_order(rng: np.random.Generator) -> None:
    infos = [PhotoInfo(f"{number}.jpg") for number in range(50)]
    faces = found_faces(infos, np.sort(rng.integers(0, 50, 80)), score=rng.random(80))
    shuffled = replace(faces, photo=rng.permutation(faces.photo))
    for some in (faces, shuffled, faces[:0], no_faces(infos)):
        photos = some.photos()
        assert [photo.path for photo in photos] == [info.path for info in some.infos]
        for index, photo in enumerate(photos):
            assert photo.faces.score.tolist() == some.score[some.photo == index].tolist()
            assert photo.faces.photo.tolist() == [0] * len(photo.faces)


def test_a_face_has_each_column_by_its_name() -> None:
    outputs = {"move_x": [0.1, 0.2], "valence": [-0.5, 0.5]}
    box = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    faces = make_faces(LABELS, [[1.0, 0.0], [0.3, 0.7]], outputs=outputs, box=box)
    face = faces[1]
    assert face.status == "ok"
    assert face.box_top == 6.0
    assert face.p_b == 0.7
    assert face.valence == 0.5
    assert face.model is face.yaw is face.blur is None
    assert not hasattr(face, "arousal")
    with pytest.raises(AttributeError, match=r"'Face'.* 'colour'"):
        face.colour  # noqa: B018
