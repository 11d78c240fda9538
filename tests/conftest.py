"""Fixtures that several tests share."""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its log goes to the stderr of this moment, which must outlive a test
import pytest

from fer_vit.cli import main
from fer_vit.data.schema import Reading, Row
from fer_vit.data.writing import write_manifest
from fer_vit.face.image import encode_png
from fer_vit.sources.drawing import draw_face
from fer_vit.sources.drawn import read

TINY = [
    "--model.network.img_size=32",
    "--model.network.patch_size=8",
    "--model.network.embed_dim=32",
    "--model.network.depth=2",
    "--model.network.num_heads=2",
    "--data.batch_size=16",
    "--data.num_workers=0",
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
"""Options that make a run of fit last about a second."""

OFFLINE = Path(__file__).parent / "offline"
runpy.run_path(str(OFFLINE / "sitecustomize.py"))  # this process asks no network, and those that it starts neither
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(OFFLINE), os.environ.get("PYTHONPATH"))))

SHARED = Path(__file__).resolve().parents[2] / "shared"


def outside(variable: str, usual: Path, what: str) -> Path:
    """A file that is not part of the project, at its usual place or where a variable says; without it tests skip."""
    path = Path(os.environ.get(variable) or usual)
    if not path.is_file():
        pytest.skip(f"{what} is not here: set {variable} to its path")
    return path


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Takes back what a test leaves in the environment: Lightning's LOCAL_RANK would make later processes wait."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def yunet() -> Path:
    """The YuNet model, which is not part of the project."""
    return outside("FER_VIT_YUNET", SHARED / "models" / "face_detection_yunet_2026may.onnx", "the YuNet model")


@pytest.fixture(scope="session")
def ferplus_zip() -> Path:
    """The real FERPlus, which is not part of the project."""
    return outside("FER_VIT_FERPLUS", SHARED / "data" / "ferplus.zip", "FERPlus")


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the manifest `faces.parquet` of 170 drawn faces, whose pictures are in `faces`."""
    folder = tmp_path_factory.mktemp("drawn")
    reading = read(folder / "faces", count=170, size=64)
    write_manifest(folder / "faces.parquet", reading, "drawn")
    return folder


@pytest.fixture(scope="session")
def checkpoint(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny model, trained for two steps on the drawn faces through the command line."""
    folder = tmp_path_factory.mktemp("runs")
    main(["fit", *TINY, f"--data.manifest={drawn / 'faces.parquet'}", f"--trainer.logger.init_args.save_dir={folder}"])
    return folder / "default" / "version_0" / "checkpoints" / "best.ckpt"


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest with the seven classes of RAF-DB in its order, two faces each in every split."""
    names = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
    rows = [
        Row(encode_png(draw_face(name, seed, 48)[0]), f"{name}-{seed}", split, name)
        for name in names
        for seed, split in enumerate(("train", "train", "val", "val", "test", "test"))
    ]
    path = tmp_path_factory.mktemp("seven") / "faces.parquet"
    write_manifest(path, Reading(names, rows), "drawn")
    return path


@pytest.fixture
def yunet_named(yunet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the commands find the YuNet model without a download."""
    monkeypatch.setenv("FER_VIT_YUNET", str(yunet))


def assert_same(rows: list[dict[str, object]], expected: list[dict[str, object]]) -> None:
    """Up to what another batch makes of a probability's last digits."""
    for row, other in zip(rows, expected, strict=True):
        assert row == {
            name: pytest.approx(value, abs=1e-5) if isinstance(value, float) else value for name, value in other.items()
        }
