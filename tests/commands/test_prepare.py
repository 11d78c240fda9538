"""The command `prepare` from a small data set to a manifest that reads back,
and every way it can be refused.
"""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fer_vit.commands.prepare import prepare
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row
from fer_vit.errors import FerVitError
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import DETECTORS, Detector
from fer_vit.face.image import UNREADABLE, decode_image, encode_png
from fer_vit.geometry import TEMPLATE, Array, Image
from fer_vit.sources import SOURCES, folder
from fer_vit.sources.cartoon import draw_face
from tests.helpers.commands import fails

YUNET = type(DETECTORS["yunet"])

POINTS = np.asarray(TEMPLATE)


class BrightFaces(Detector):
    """Finds one face, filling the image, where the image is bright."""

    def detect(self, image: Image) -> list[Detection]:
        height, width = image.shape[:2]
        face = Detection(np.array([0.0, 0.0, width, height]), POINTS * (width, height), 0.75)
        return [face] if image.mean() > 100 else []


def picture(brightness: int, side: int = 48) -> bytes:
    return encode_png(np.full((side, side), brightness, np.uint8))


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Class folders: two bright faces, a dark image and three files that cannot be read."""
    files = {
        "train/happy/1.png": picture(200),
        "train/happy/2.png": picture(10),
        "train/happy/empty.jpg": b"",
        "val/sad/3.png": picture(220, side=96),
        "val/sad/broken.png": picture(220)[:40],
        "val/sad/text.png": b"no image",
    }
    return fill(tmp_path / "photos", files)


@pytest.fixture
def bright(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DETECTORS, "yunet", BrightFaces())


def zipped(place: Path) -> Path:
    path = place.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(place.rglob("*.*")):
            archive.write(file, file.relative_to(place))
    return path


def landmarks_by_name(manifest: Manifest) -> dict[str, Array]:
    names = [Path(image["path"]).name for image in manifest.table["image"].to_pylist()]
    return dict(zip(names, manifest.landmarks(), strict=True))


@pytest.mark.usefixtures("bright")
def test_prepare_makes_a_manifest_of_a_folder(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "new" / "photos.parquet"
    prepare("folder", photos, out)
    manifest = Manifest.read(out)
    assert manifest.labels == ("happiness", "sadness")
    assert manifest.table["split"].to_pylist() == ["train", "train", "val"]
    assert manifest.table["score"].to_pylist() == [0.75, 0, 0.75]
    landmarks = landmarks_by_name(manifest)
    for name, image in (
        ("1.png", picture(200)),
        ("2.png", picture(10)),
        ("3.png", picture(220, side=96)),
    ):
        np.testing.assert_allclose(
            landmarks[name],
            DETECTORS["landmarks"].find_in_crop(decode_image(image)).landmarks,
            rtol=1e-5,
        )
    printed = capsys.readouterr().out
    assert "2 of 3 (66.67%)" in printed
    assert f"left out: 2 ({UNREADABLE}" in printed
    assert re.search(r"left out: 1 \(.*empty\)", printed)
    assert f"{out}: 3 rows" in printed
    assert [path.name for path in out.parent.iterdir()] == ["photos.parquet"]


@pytest.mark.parametrize("detector", ["landmarks", "none"])
def test_prepare_without_a_detector(
    photos: Path, tmp_path: Path, detector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(DETECTORS["yunet"]), "find", lambda *_: pytest.fail("the detector is not needed")
    )
    prepare("folder", photos, tmp_path / "photos.parquet", detector=detector)
    manifest = Manifest.read(tmp_path / "photos.parquet")
    assert len(manifest) == 3
    assert np.isfinite(manifest.landmarks()).all() == (detector == "landmarks")
    assert manifest.column("score") == [None] * 3
    with pytest.raises(FerVitError, match=f"`cut`.*`detector='{detector}'`"):
        prepare("folder", photos, tmp_path / "cut.parquet", detector=detector, cut=True)


@pytest.mark.usefixtures("bright")
def test_a_zip_gives_the_same_rows_with_images(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    prepare("folder", photos, tmp_path / "plain.parquet")
    plain = Manifest.read(tmp_path / "plain.parquet")
    (tmp_path / "out").mkdir()
    prepare("folder", zipped(photos), tmp_path / "out" / "zip.parquet")
    packed = Manifest.read(tmp_path / "out" / "zip.parquet")
    for column in ("split", "label", "landmarks", "score"):
        assert packed.table[column].to_pylist() == plain.table[column].to_pylist()
    assert [packed.image_bytes(row) for row in range(3)] == [
        plain.image_bytes(row) for row in range(3)
    ]
    assert all(image["bytes"] for image in packed.table["image"].to_pylist())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["zip.parquet"]
    assert "note: No test split" in (printed := capsys.readouterr().out)
    assert ".part" not in printed


@pytest.mark.usefixtures("bright")
def test_notes_name_a_zip_beside_a_folder_with_an_unusual_space(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder_of_manifest = tmp_path / "no\u00a0break"
    folder_of_manifest.mkdir()
    archive = zipped(photos)
    prepare("folder", archive, folder_of_manifest / "zip.parquet")
    printed = capsys.readouterr().out
    assert f"split in {archive}." in printed
    assert ".part" not in printed


def test_wrong_arguments_before_anything_is_read(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "read", lambda root: pytest.fail("nothing may be read"))
    out = tmp_path / "out.parquet"
    existing = tmp_path / "there.parquet"
    archive = zipped(photos)
    fill(tmp_path, {"there.parquet": b"precious", "damaged.zip": b"PK\x03\x04 and nothing more"})
    for source, root, target, options, message in (
        ("folder", photos, existing, {}, "already exists"),
        ("ferplus", tmp_path / "missing.zip", out, {}, "missing.zip"),
        ("folder", tmp_path / "damaged.zip", out, {}, "damaged.zip"),
        # the message names the zip, not the unpacked folder
        ("rafdb", archive, out, {}, f" {archive}"),
    ):
        with pytest.raises(FerVitError, match=message) as caught:
            prepare(source, root, target, **options)
        assert ".part" not in str(caught.value)
    assert existing.read_bytes() == b"precious"
    assert not list(tmp_path.glob(".*"))
    assert not list(tmp_path.glob("out*"))


def test_drawn_faces_need_no_detector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(
        type(DETECTORS["yunet"]), "find", lambda *_: pytest.fail("the detector is not needed")
    )
    out = tmp_path / "drawn.parquet"
    prepare("drawn", tmp_path / "faces", out, count=40, size=32, colour=True)
    assert f"{out}: 40 rows" in capsys.readouterr().out
    assert np.isfinite(Manifest.read(out).landmarks()).all()


def test_near_duplicates_of_val_are_no_training_images(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    seeds = {
        "train/happy/1.png": 1,
        "train/happy/2.png": 2,
        "val/happy/3.png": 2,
        "val/sad/4.png": 4,
    }
    faces = {name: encode_png(draw_face("happiness", seed, 64)[0]) for name, seed in seeds.items()}
    prepare("folder", fill(tmp_path / "faces", faces), tmp_path / "m.parquet", detector="none")
    manifest = Manifest.read(tmp_path / "m.parquet")
    names = [Path(manifest.name(row)).stem for row in range(len(manifest))]
    assert dict(zip(names, manifest.column("near_duplicate"), strict=True)) == {
        "1": None,
        "3": True,
        "4": False,
    }
    assert "left out: 1 (near-duplicate" in capsys.readouterr().out


def test_landmarks_of_a_crop_are_those_of_the_photo(
    yunet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One photo, as a crop that is framed like FERPlus' and in full."""
    monkeypatch.setenv("FER_VIT_YUNET", str(yunet))
    photo = np.asarray(pytest.importorskip("skimage.data").astronaut())
    images = {
        "train/happy/crop.png": encode_png(photo[58:176, 166:284]),
        "val/happy/full.png": encode_png(photo),
    }
    prepare("folder", fill(tmp_path / "data", images), tmp_path / "out.parquet", workers=1)
    landmarks = landmarks_by_name(Manifest.read(tmp_path / "out.parquet"))
    # The landmarks from the crop and from the full photo agree within a twentieth of the distance
    # between the eyes (44 pixels).
    assert (
        np.linalg.norm(landmarks["crop.png"] + (166, 58) - landmarks["full.png"], axis=1).mean()
        < 2.2
    )


def test_without_a_readable_image_an_older_manifest_stays(tmp_path: Path) -> None:
    out = fill(tmp_path, {"out.parquet": b"older"}) / "out.parquet"
    data = fill(tmp_path / "data", {"happy/1.png": b"", "sad/2.png": b""})
    with pytest.raises(FerVitError, match=r"\b2 .*empty"):
        prepare("folder", data, out, detector="none", overwrite=True)
    assert out.read_bytes() == b"older"
    fill(data, {"happy/1.png": picture(200), "sad/2.png": picture(200)})
    prepare("folder", data, out, detector="none", overwrite=True)
    assert len(Manifest.read(out)) == 2


def test_a_reader_declares_the_columns_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(root: Path) -> Reading:
        row = Row(picture(200), "1.png", "train", "happiness", extra={"person": "anna"})
        return Reading(("happiness", "sadness"), [row])

    monkeypatch.setitem(SOURCES, "later", read)
    with pytest.raises(FerVitError, match=r"1\.png.*person.*`Reading\.extra`"):
        prepare("later", tmp_path, tmp_path / "out.parquet", detector="none")


def test_labels_and_persons_of_a_zip_with_a_table(tmp_path: Path) -> None:
    files = {f"images/{number}.png": picture(120 + 8 * number) for number in range(12)}
    lines = [f"{number}.png,{'sad' if number % 2 else 'happy'},P{number}" for number in range(12)]
    files["labels.csv"] = "\n".join(["path,label,person", *lines]).encode()
    archive = zipped(fill(tmp_path / "data", files))
    out = tmp_path / "out.parquet"
    prepare("folder", archive, out, detector="none", targets=Path("labels.csv"))
    manifest = Manifest.read(out)
    assert manifest.labels == ("happiness", "sadness")
    assert len({*manifest.column("person")}) == 12
    assert {*manifest.column("split")} == {"train", "val", "test"}


def test_another_manifest_is_added(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = b"path,age,gender,race\ntrain/1.jpg,20-29,Female,Indian\n"
    faces = fill(tmp_path / "faces", {"train/1.jpg": picture(200), "labels.csv": table})
    prepare("drawn", tmp_path / "drawn", tmp_path / "drawn.parquet", count=8)
    caplog.clear()
    with caplog.at_level("INFO", "fer_vit"):
        prepare(
            "fairface",
            faces,
            tmp_path / "all.parquet",
            detector="none",
            add=[tmp_path / "drawn.parquet"],
        )
    assert "(no label)" in caplog.text
    assert "happiness" not in caplog.text, "no face has a label"
    both = Manifest.read(tmp_path / "all.parquet")
    assert both.column("source") == ["fairface"] + ["drawn"] * 8
    assert both.column("age") == ["20-29"] + [None] * 8
    photos = fill(tmp_path / "photos", {"happy/1.png": picture(200), "sad/1.png": picture(200)})
    with pytest.raises(
        FerVitError,
        match=r"happiness, sadness in .*drawn\.parquet.*neutral",
    ):
        prepare("folder", photos, tmp_path / "x.parquet", add=[tmp_path / "drawn.parquet"])


def test_options_of_another_data_set_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TypeError, match="'label'"):
        prepare("ferplus", tmp_path, tmp_path / "a.parquet", label="soft")
    line = fails(capsys, "prepare", "folder", tmp_path, tmp_path / "a.parquet", "--count=5")
    assert "--count=5" in line
    assert "`fer-vit prepare folder --help`" in line
