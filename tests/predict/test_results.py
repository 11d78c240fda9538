"""What `predict` returns in Python: faces, the photos without one, their table,
and copies of them.
"""

import copy
import io
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image as Pil
from skimage.data import astronaut

import fer_vit
from fer_vit import FerVitError, ImageError, ModelError, load, table
from fer_vit.engine.torch_threads import few_threads
from fer_vit.face import image
from fer_vit.face.crop import DEFAULT_REGIONS
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import FindsFaces
from fer_vit.face.image import encode_png
from fer_vit.faces import no_faces
from fer_vit.geometry import Image
from fer_vit.predict.face_results import FaceResult, FaceResults
from fer_vit.predict.recognizer import Recognizer
from fer_vit.store.hub import DEFAULT_MODEL
from tests.helpers.commands import main
from tests.helpers.hostile import claiming
from tests.helpers.processes import PATIENCE


@pytest.fixture(scope="module")
def model() -> Recognizer:
    return load(device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo of one face, one of two, one without a face, and one that cannot be read."""
    folder = tmp_path_factory.mktemp("photos")
    face = astronaut()[:300, 100:350]
    for name, pixels in (
        ("a.png", face),
        ("c.png", np.full((64, 64, 3), 128, np.uint8)),
        ("d.png", np.hstack([face, face])),
    ):
        (folder / name).write_bytes(encode_png(pixels))
    (folder / "b.png").write_bytes(b"text")
    return folder


@pytest.fixture(scope="module")
def faces(model: Recognizer, folder: Path) -> FaceResults:
    with pytest.warns(UserWarning, match=r"b\.png"):
        return model.predict(folder, workers=0)


def test_photos_without_a_face_are_listed(faces: FaceResults) -> None:
    assert [(Path(photo.path).name, len(photo.faces)) for photo in faces.photos()] == [
        ("a.png", 1),
        ("b.png", 0),
        ("c.png", 0),
        ("d.png", 2),
    ]
    statuses = [photo.status for photo in faces.photos()]
    assert statuses[0] == "ok"
    assert statuses[2] == "no face"
    assert statuses[3] == "ok"
    assert statuses[1].startswith("not an image")


def test_the_table_has_photos_without_a_face(faces: FaceResults) -> None:
    full = table(faces)
    chosen = table(faces[[2, 0]])
    assert chosen.column_names == full.column_names
    assert [Path(path).name for path in chosen["path"].to_pylist()] == ["d.png", "a.png"]
    names = [Path(path).name for path in full["path"].to_pylist()]
    assert names == ["a.png", "b.png", "c.png", "d.png", "d.png"]
    statuses = {Path(photo.path).name: photo.status for photo in faces.photos()}
    assert full["status"].to_pylist() == [statuses[name] for name in names]
    assert full["face"].to_pylist() == [0, None, None, 0, 1]


def test_a_batch_has_the_rows_of_the_command(
    model: Recognizer, folder: Path, tmp_path: Path
) -> None:
    """Photos come by path or as bytes; none of them raises an error, whatever it is."""
    main(["predict", str(folder), "--output", str(tmp_path / "faces.parquet")])
    expected = pq.read_table(tmp_path / "faces.parquet").to_pylist()
    paths = sorted(map(str, folder.iterdir()))
    contents = [Path(path).read_bytes() for path in paths]
    for columns in ({"path": paths}, {"path": paths, "bytes": contents, "id": [1, 2, 3, 4]}):
        for batch in (pa.table(columns), pa.RecordBatch.from_pydict(columns)):
            rows = model.predict_batch(batch).to_pylist()
            assert [[*row] for row in rows] == [[*row] for row in expected]
            for name in ("path", "status", "face", "label", "model"):
                assert [row[name] for row in rows] == [row[name] for row in expected]

    huge = claiming("PNG", 16, b"\0\1\x86\xa0" * 2)  # 100,000 pixels each way
    odd = {
        "path": [None, "gone.png", str(folder), "x.png", "clip.png", "huge.png"],
        "bytes": [None, None, None, b"", b"\0\0\0\x18ftypmp42", huge],
    }
    result = model.predict_batch(pa.table(odd))
    assert result["path"].to_pylist() == ["", *odd["path"][1:]]
    assert [status.partition(":")[0] for status in result["status"].to_pylist()] == [
        "not a regular file",
        "No such file or directory",
        "not a regular file",
        "the file is empty",
        "a video, not an image",
        "too large",
    ]
    assert model.predict_batch(pa.table({"path": pa.array([], pa.string())})).num_rows == 0
    with pytest.raises(FerVitError, match=r"the column path, but got photo\."):
        model.predict_batch(pa.table({"photo": paths}))


def test_a_table_has_the_origin_of_its_faces(faces: FaceResults) -> None:
    full = table(faces)
    assert {*full["model"].to_pylist()} == {DEFAULT_MODEL}
    assert {*full["fer_vit_version"].to_pylist()} == {fer_vit.__version__}
    assert None not in full["predicted_on"].to_pylist()
    assert None not in full["detector"].to_pylist()


def test_a_table_is_of_faces_in_any_container(faces: FaceResults) -> None:
    every_face = table(faces[:])  # without the photos that have no face
    assert every_face.num_rows == len(faces)
    assert table(list(faces)).equals(every_face)
    assert table(faces[0:1] + faces[1:]).equals(every_face)
    assert table(faces[2]).equals(table(faces[2:]))
    assert table([]).num_rows == table(no_faces()).num_rows == 0


def test_faces_of_a_list_are_explained(model: Recognizer, faces: FaceResults) -> None:
    picked = model.explain([faces[0], faces[2]], "relevance")
    assert np.array_equal(picked.shares, model.explain(faces[[0, 2]], "relevance").shares)


def test_what_is_no_face_is_named(model: Recognizer, faces: FaceResults) -> None:
    for wrong in ("photo.jpg", 3, [faces[0], 3], faces.photos()):
        no_face = wrong[-1] if isinstance(wrong, list) else wrong
        kind = type(no_face).__name__
        for function in (table, model.explain):
            with pytest.raises(FerVitError, match=kind):
                function(wrong)
    with pytest.raises(FerVitError, match=r"FaceResults"):
        model.plot_attention(faces)


def test_a_plot_is_saved_to_the_file_in_first_place(faces: FaceResults, tmp_path: Path) -> None:
    picture = faces[0].plot(tmp_path / "face.png")
    with Pil.open(tmp_path / "face.png") as saved:
        assert saved.size == picture.size


def test_a_plot_replaces_a_link(faces: FaceResults, tmp_path: Path) -> None:
    target = tmp_path / "target.png"
    target.write_bytes(b"before")
    link = tmp_path / "link.png"
    link.symlink_to(target)
    picture = faces[0].plot(link)
    assert not link.is_symlink()
    assert target.read_bytes() == b"before"
    with Pil.open(link) as saved:
        assert (saved.format, saved.size) == ("PNG", picture.size)


def test_the_same_photo_twice_has_its_rows_twice(model: Recognizer, folder: Path) -> None:
    rows = table(model.predict([folder / "d.png"] * 2, workers=0)).to_pylist()
    assert [row["face"] for row in rows] == [0, 1, 0, 1]


def test_a_slice_has_the_photos_of_its_faces(faces: FaceResults) -> None:
    part = faces[1:]
    assert isinstance(part, FaceResults)
    assert [Path(photo.path).name for photo in part.photos()] == ["d.png"]
    assert part.origin == faces.origin
    assert [picture.size for picture in faces[:2].plot()] == [(250, 300), (500, 300)]
    assert isinstance(faces[0], type(faces[-1]))


def test_bytes_and_open_files(model: Recognizer, folder: Path) -> None:
    content = (folder / "a.png").read_bytes()
    (expected,) = model.predict(folder / "a.png", workers=0)
    with (folder / "a.png").open("rb") as file:
        faces = model.predict([content, io.BytesIO(content), bytearray(content), file], workers=0)
    assert [face.path for face in faces] == [f"<bytes {index}>" for index in range(4)]
    for face in faces:
        assert face.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
    assert np.array_equal(faces[0].read_photo(), expected.read_photo())
    assert pickle.loads(pickle.dumps(faces[0])).plot().size == expected.plot().size
    with pytest.raises(FerVitError, match='"rb"'):
        model.predict(io.StringIO("text"))
    for wrong in (b"", b"text", content[:100]):
        with pytest.raises(ImageError, match="<bytes 0>"):
            model.predict(wrong, workers=0)
    with pytest.warns(UserWarning, match="<bytes 1>"):
        mixed = model.predict([content, b"text"], workers=0)
    assert [len(photo.faces) for photo in mixed.photos()] == [1, 0]


def test_bytes_are_upright_by_their_exif(model: Recognizer, folder: Path) -> None:
    upright = Pil.open(folder / "a.png")
    exif = Pil.Exif()
    file = io.BytesIO()
    exif[0x0112] = 6
    upright.rotate(90, expand=True).save(file, "jpeg", exif=exif, quality=95)
    (face,) = model.predict(file.getvalue(), workers=0)
    assert face.read_photo().shape == (300, 250, 3)


@pytest.fixture(scope="module")
def unpickled(faces: FaceResults) -> FaceResult:
    return pickle.loads(pickle.dumps(faces[0]))


def test_copies_of_a_face_have_no_network(faces: FaceResults, unpickled: FaceResult) -> None:
    assert len(pickle.dumps(faces[0])) < 20_000
    assert unpickled.probabilities == faces[0].probabilities
    assert unpickled.plot().size == faces[0].plot().size
    assert copy.deepcopy(faces[0]).probabilities == faces[0].probabilities


def test_attention_of_a_face_needs_its_model(
    model: Recognizer, faces: FaceResults, unpickled: FaceResult
) -> None:
    assert np.array_equal(model.attend(unpickled).relations, model.attend(faces[0]).relations)


@pytest.mark.parametrize("orientation", [1, 6])
def test_faces_of_a_photo_that_was_searched_in_a_reduced_copy(
    orientation: int, model: Recognizer, tmp_path: Path
) -> None:
    """Half of the sides 2643 and 1983 is no whole number."""
    upright = Pil.new("RGB", (2643, 1983) if orientation == 1 else (1983, 2643), (90, 120, 90))
    upright.paste(Pil.fromarray(astronaut()[:300, 100:350]), (40, 60))
    exif = Pil.Exif()
    exif[0x0112] = orientation
    stored = upright if orientation == 1 else upright.transpose(Pil.Transpose.ROTATE_90)
    stored.save(tmp_path / "large.jpg", exif=exif, quality=95)
    (face,) = model.predict(tmp_path / "large.jpg", workers=0)
    assert face.info.size == upright.size
    assert face.read_photo().shape[1::-1] == upright.size
    assert face.plot().width > 0
    assert len(model.explain(face, "relevance")) == 1


def test_a_copy_of_a_face_is_explained_like_the_face(
    model: Recognizer, faces: FaceResults, unpickled: FaceResult
) -> None:
    explained = model.explain(unpickled, "relevance")
    expected = model.explain(faces[0], "relevance")
    assert np.allclose(explained.shares, expected.shares, atol=1e-5)
    assert explained.shares.shape == (1, len(model.crop_spec.regions))
    assert np.abs(explained.shares).sum() == pytest.approx(1, abs=1e-4)
    label = explained.probabilities[0].argmax()
    assert model.labels[label] == unpickled.label


def test_copies_of_results_are_results(faces: FaceResults) -> None:
    many = pickle.loads(pickle.dumps(faces))
    assert isinstance(many, FaceResults)
    assert many.infos == faces.infos
    assert many.origin == faces.origin
    assert table(many).equals(table(faces))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crop_size", 7),
        ("regions", DEFAULT_REGIONS[::-1]),
        ("align", "crop"),
        ("template", ((0.5, 0.5),) * 5),
    ],
)
def test_faces_that_were_cropped_for_another_model_are_not_explained(
    model: Recognizer, faces: FaceResults, name: str, value: Any
) -> None:
    scheme = replace(faces.scheme, **{name: value})
    with pytest.raises(FerVitError, match=name.removeprefix("crop_")):
        model.explain(replace(faces, scheme=scheme))


def test_the_title_of_an_explanation_is_the_class_that_its_heat_explains(
    model: Recognizer, faces: FaceResults, tmp_path: Path
) -> None:
    model = load(model.net, "cpu")
    before = faces[0].label
    possible = [label for label in model.labels if label != before]
    model.change_prior(None, possible)
    explanations = model.explain(faces[0], "relevance")
    explained = model.labels[int(explanations.probabilities[0].argmax())]
    explanations.plot(file=tmp_path / "why.svg")
    text = (tmp_path / "why.svg").read_text("utf-8")
    assert explained != before
    assert explained in text
    assert before not in text
    with pytest.raises(FerVitError, match="jpg"):
        explanations.plot(file=tmp_path / "why.jpg")


def test_several_faces_are_explained_like_each(model: Recognizer, faces: FaceResults) -> None:
    together = model.explain(faces, "relevance")
    assert together.shares.shape == (3, len(model.crop_spec.regions))
    for row, face in enumerate(faces):
        alone = model.explain(face, "relevance")
        assert np.allclose(together.shares[row], alone.shares[0], atol=1e-4)
        assert np.allclose(together.heat[row], alone.heat[0], atol=1e-4)
    assert len(together) == 3
    width, height = together.plot(2).size
    assert width > height
    with pytest.raises(FerVitError, match="none"):
        model.explain(faces[:0])


def test_errors_have_types(tmp_path: Path, model: Recognizer) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "a.ckpt").write_bytes(b"text")
    for name in ("none", tmp_path / "model", tmp_path / "a.ckpt"):
        with pytest.raises(ModelError):
            load(name)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"a\.png: "):
        model.predict(tmp_path / "a.png")
    assert all(
        issubclass(kind, FerVitError) for kind in (ImageError, ModelError, fer_vit.TableError)
    )


def test_predict_restores_the_threads_of_the_process(model: Recognizer, folder: Path) -> None:
    before = cv2.getNumThreads(), torch.get_num_threads()
    try:
        cv2.setNumThreads(3)
        torch.set_num_threads(3)
        model.predict(folder / "a.png", workers=0)
        assert cv2.getNumThreads() == 3
        assert torch.get_num_threads() == 3
        with pytest.raises(ImageError):
            model.predict(folder / "b.png", workers=0)
        assert cv2.getNumThreads() == 3
        assert torch.get_num_threads() == 3
        with few_threads(1):
            assert torch.get_num_threads() == 1
        with few_threads(64):
            assert torch.get_num_threads() == 3
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])


def test_predictions_that_overlap_in_threads_restore_opencv(model: Recognizer) -> None:
    first = threading.Event()
    second = threading.Event()

    class Waiting:
        def find(self, image: Image) -> list[Detection]:
            first.set()
            second.wait(PATIENCE)
            return []

    class Overlapping:
        def find(self, image: Image) -> list[Detection]:
            thread.start()
            assert first.wait(PATIENCE)
            return []

    def predict(detector: FindsFaces) -> None:
        model.predict(np.zeros((9, 9, 3), np.uint8), detector=detector, workers=0)

    thread = threading.Thread(target=predict, args=(Waiting(),))
    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        predict(Overlapping())
        assert cv2.getNumThreads() == 1
        second.set()
        thread.join()
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


def test_the_number_of_threads_changes_only_rounding(model: Recognizer, folder: Path) -> None:
    photo = folder / "d.png"
    few = model.predict(photo, workers=0)
    many = model.predict([photo] * 8, workers=0)
    for face, same in zip(few, many, strict=False):
        assert face.probabilities == pytest.approx(same.probabilities, abs=1e-5)


def test_a_photo_is_read_once(
    model: Recognizer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    plain = image.read_bytes

    def count(path: Path) -> bytes:
        opened.append(path)
        return plain(path)

    monkeypatch.setattr(image, "read_bytes", count)
    model.predict(folder / "a.png", workers=0)
    assert opened == [folder / "a.png"]


def test_data_frames_and_readers_of_arrow_take_faces(faces: FaceResults) -> None:
    rows = table(faces)
    assert pa.table(faces).equals(rows)
    frame = faces.to_pandas()
    assert list(frame.columns) == rows.column_names
    assert frame["path"].tolist() == rows["path"].to_pylist()
