"""The engines of a model: their agreement, their choice, and files that do not fit."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import softmax

import fer_vit
from fer_vit import load
from fer_vit.data.dataset import FaceDataset, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.engine.onnx_engine import OnnxEngine
from fer_vit.engine.protocol import RawOutputs
from fer_vit.errors import FerVitError, ModelError
from fer_vit.face.image import encode_png
from fer_vit.face.network import CPU
from fer_vit.faces import Crops
from fer_vit.geometry import Array
from fer_vit.heads import HEADS
from fer_vit.losses import decode
from fer_vit.model_settings import read_model_settings
from fer_vit.predict.recognizer import Recognizer, load_torch
from fer_vit.processes import threads
from fer_vit.store.hub import DEFAULT_MODEL, ENGINE_FILES, read_config, shipped_models
from fer_vit.store.model_folder import hash_weights, load_network
from tests.helpers.commands import fails, run
from tests.helpers.crops import noise_crops
from tests.helpers.models import ROUNDING

AGREEMENT = 1e-4
"""Largest difference between engines, as a share of the range of an output over the faces."""
MANY = 12
MANY_PHOTOS = 64
HEAVY = {
    *("torch", "torchvision", "timm", "lightning", "albumentations", "torchmetrics"),
    *("matplotlib", "scipy"),
}


def is_torch(model: Recognizer) -> bool:
    return "TorchEngine" in repr(model)


@cache
def engines(name: str) -> tuple[Recognizer, Recognizer]:
    """A model with ONNX Runtime and with torch."""
    return load(name, "cpu"), load_torch(name, "cpu")


def all_outputs(raw: RawOutputs) -> dict[str, Array]:
    return {"logits": raw.logits, "features": raw.features, **raw.heads}


def check_agreement(name: str, crops: Crops) -> None:
    small, whole = engines(name)
    assert isinstance(small.engine, OnnxEngine)
    assert is_torch(whole)
    expected = all_outputs(whole.engine.run(crops))
    for count in (1, 3, len(crops)):
        for output, values in all_outputs(small.engine.run(crops[:count])).items():
            scale = np.ptp(expected[output], axis=0)
            difference = abs(values - expected[output][:count]) / scale
            assert difference.max() < AGREEMENT, (output, count)
    predicted, reference = small.read(crops), whole.read(crops)
    np.testing.assert_allclose(predicted.probabilities, reference.probabilities, atol=AGREEMENT)
    assert predicted.outputs.shape == (len(crops), len(small.outputs))


@pytest.mark.parametrize("name", shipped_models())
def test_the_engines_of_a_shipped_model_agree(name: str, drawn: Path) -> None:
    spec = load(name, "cpu").crop_spec
    check_agreement(name, noise_crops(spec, MANY))  # also with missing regions
    faces = Manifest.read(drawn / "faces.parquet")
    (crops,) = face_crops(FaceDataset(faces, spec), range(MANY), MANY)
    check_agreement(name, crops)


@pytest.fixture(scope="module")
def photos(ferplus_zip: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Validation faces of FERPlus, without their labels."""
    with zipfile.ZipFile(ferplus_zip) as archive:
        names = [name for name in archive.namelist() if "Valid" in name and name.endswith(".png")]
        every = len(names) // MANY_PHOTOS
        rows = [Row(archive.read(name), name, "val", "neutral") for name in names[::every]]
    path = tmp_path_factory.mktemp("ferplus") / "faces.parquet"
    write_manifest(path, Reading(("neutral",), rows[:MANY_PHOTOS]), "ferplus")
    return Manifest.read(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_models())
def test_the_engines_of_a_shipped_model_agree_on_photos(name: str, photos: Manifest) -> None:
    faces = FaceDataset(photos, load(name, "cpu").crop_spec)
    (crops,) = face_crops(faces, range(MANY_PHOTOS), MANY_PHOTOS)
    check_agreement(name, crops)
    valid = crops.valid.copy()
    valid[::2, ::3] = False
    boxes = np.where(valid[..., None], crops.boxes, np.float32(0))
    check_agreement(name, replace(crops, valid=valid, boxes=boxes))


@pytest.mark.parametrize("name", shipped_models())
def test_the_files_of_a_shipped_model_have_its_weights(name: str) -> None:
    """`python -m fer_vit.exporting.engine_files FOLDER MANIFEST` writes them anew."""
    folder = shipped_models()[name]
    digest = hash_weights(load_network(folder).state_dict())
    for precision, file in ENGINE_FILES.items():
        model = load(name, precision=precision)
        assert model.engine.fingerprint.split()[0] == digest, file
    small = onnx.load(folder / ENGINE_FILES["int8"])
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in small.graph.initializer]
    largest = [abs(array.astype(int)).max() for array in weights if array.dtype == np.int8]
    assert max(largest) <= 64  # without VNNI, a sum of products with larger weights overflows
    assert (folder / ENGINE_FILES["int8"]).stat().st_size < 8e6
    assert (folder / ENGINE_FILES["float32"]).stat().st_size < 14e6


def test_8_bits_are_close_and_calibrated_for_themselves(drawn: Path) -> None:
    whole, small = load(device="cpu"), load(precision="int8")
    faces = Manifest.read(drawn / "faces.parquet")
    (crops,) = face_crops(FaceDataset(faces, whole.crop_spec), range(MANY), MANY)
    expected, predicted = whole.read(crops), small.read(crops)
    same = expected.probabilities.argmax(1) == predicted.probabilities.argmax(1)
    assert same.mean() > 0.9
    assert 0 < abs(expected.probabilities - predicted.probabilities).max() < 0.3
    assert small.thresholds != whole.thresholds
    assert small.fingerprint != whole.fingerprint


def test_values_of_heads_are_those_of_torch() -> None:
    """From -60 to 60, before the function of each head."""
    model = load(device="cpu")
    crops = noise_crops(model.crop_spec, 33)
    raw = model.engine.run(crops)
    heads = {}
    for head, values in raw.heads.items():
        heads[head] = np.linspace(-60, 60, values.size).reshape(values.shape)
    found = model.decode(raw._replace(heads=heads), crops).outputs
    expected = [decode(head, torch.from_numpy(values)) for head, values in heads.items()]
    columns = [HEADS[head].prefix + name for head in heads for name in model.outputs.plain[head]]
    for column, values in zip(columns, torch.cat(expected, 1).numpy().T, strict=True):
        if column == "roll":  # of the photo, by the turn of the crop
            continue
        difference = found[:, model.outputs.columns.index(column)] - values
        if column in ("yaw", "pitch"):
            difference = (difference + 180) % 360 - 180
        assert abs(difference).max() < 1e-6, column


def test_the_weights_of_8_faces_or_more_are_shared_by_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(device="cpu")
    crops = noise_crops(model.crop_spec, 20)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = model.read(crops).probabilities
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    np.testing.assert_allclose(model.read(crops).probabilities, alone, atol=ROUNDING)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_computes_with_the_network_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    model = load(device="cpu")
    crops = noise_crops(model.crop_spec, 20)
    expected = model.read(crops).probabilities
    process = os.fork()
    if process == 0:
        same = np.allclose(model.read(crops).probabilities, expected, atol=ROUNDING)
        os._exit(0 if same and threads() == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert threads() == 2


def test_a_model_is_the_same_after_pickling() -> None:
    model = load(device="cpu", classes=["anger", "fear"])
    crops = noise_crops(model.crop_spec, 2)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.read(crops).outputs, model.read(crops).outputs)
    assert again.read(crops).probabilities.sum(1) == pytest.approx([1, 1])
    assert again.conditions == model.conditions


def test_the_probabilities_are_a_softmax_of_the_raw_logits() -> None:
    model = load(device="cpu")
    crops = noise_crops(model.crop_spec, 5)
    logits = torch.from_numpy(model.engine.run(crops).logits).double()
    expected = softmax(logits / model.settings.temperature, 1).numpy()
    np.testing.assert_allclose(model.read(crops).probabilities, expected, atol=1e-12)


# ------------------------------------------------------------------- the choice of an engine


def test_torch_computes_on_a_gpu_and_without_a_file(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(load().engine, OnnxEngine) or is_torch(load())
    assert is_torch(load(checkpoint))
    folder = shutil.copytree(shipped_models()[DEFAULT_MODEL], tmp_path / "model")
    assert isinstance(load(folder, "cpu").engine, OnnxEngine)
    assert is_torch(load(load_network(folder), "cpu"))
    (folder / ENGINE_FILES["float32"]).unlink()
    assert is_torch(load(folder, "cpu"))


def test_torch_is_asked_only_where_there_is_the_device_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU may be there whose driver torch does not find."""
    present: set[str] = set()
    asked: list[str] = []
    glob = Path.glob

    def find(folder: Path, name: str) -> Iterator[Path]:
        return iter(present & {name}) if folder == Path("/dev") else glob(folder, name)  # type: ignore[arg-type]

    def count() -> int:
        asked.append("torch")
        return 0

    monkeypatch.setattr(Path, "glob", find)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "device_count", count)
    assert isinstance(load().engine, OnnxEngine)
    assert not asked
    present.add("nvidia[0-9]*")
    assert isinstance(load().engine, OnnxEngine)
    assert asked


@pytest.mark.parametrize(("device", "on_gpu"), [("auto", True), ("cuda", True), ("cpu", False)])
@pytest.mark.usefixtures("without_torch")
def test_onnx_runtime_computes_on_a_gpu_where_its_package_can(
    device: str, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = "CUDAExecutionProvider"
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["Tensorrt", cuda, CPU])
    opened = list[list[str]]()
    session = onnxruntime.InferenceSession

    def open_on_gpu(content: bytes, options: object, providers: list[str]) -> Mock:
        opened.append(providers)
        opened_here = Mock(wraps=session(content, options, providers=[CPU]))
        opened_here.get_providers.return_value = providers
        return opened_here

    monkeypatch.setattr("onnxruntime.InferenceSession", open_on_gpu)
    engine = load(device=device).engine
    assert engine.device == ("cuda" if on_gpu else "cpu")
    assert opened == [[cuda, CPU] if on_gpu else [CPU]]
    assert load(device="auto", precision="int8").engine.device == "cpu"


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is loaded already, but no package is found anew."""
    for module in [*sys.modules.values()]:
        if module.__name__.startswith("fer_vit.") and "find_spec" in vars(module):
            monkeypatch.setattr(module, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_torch")
def test_what_needs_torch_says_so_in_one_line(
    checkpoint: Path, tmp_path: Path, astronaut: Array
) -> None:
    folder = shutil.copytree(shipped_models()[DEFAULT_MODEL], tmp_path / "model")
    (folder / ENGINE_FILES["float32"]).unlink()
    faces = load().predict(astronaut)
    for needs in (
        lambda: load(checkpoint),
        lambda: load(folder),
        lambda: load().explain(faces, "pixels"),
        lambda: load().plot_attention(faces[0]),
    ):
        with pytest.raises(FerVitError, match=r"^[^\n]* needs more packages: pip install .*torch"):
            needs()


# ---------------------------------------------------------------------- files that do not fit


def damage(folder: Path) -> None:
    path = folder / ENGINE_FILES["float32"]
    path.write_bytes(path.read_bytes()[:100_000])


def empty(folder: Path) -> None:
    (folder / ENGINE_FILES["float32"]).write_bytes(b"")


def take_foreign(folder: Path) -> None:
    """A network from elsewhere."""
    inside = Path(fer_vit.__file__).parent / "face" / "landmarks.onnx"
    shutil.copy(inside, folder / ENGINE_FILES["float32"])


def take_other_inputs(folder: Path) -> None:
    """The network of another model."""
    other = next(path for name, path in shipped_models().items() if name != DEFAULT_MODEL)
    shutil.copy(other / ENGINE_FILES["float32"], folder / ENGINE_FILES["float32"])


def take_probabilities(folder: Path) -> None:
    """A file that `fer-vit export NAME.onnx` has written for other programs."""
    path = folder / ENGINE_FILES["float32"]
    model = onnx.load(path)
    (facts,) = model.metadata_props
    facts.value = json.dumps(json.loads(facts.value) | {"returns": "probabilities"})
    onnx.save(model, path)


def change_settings(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["outputs"]["movements"].pop()
    config["r"] = {}
    (folder / "config.json").write_text(json.dumps(config))


def read_elsewhere(folder: Path) -> None:
    """Weights that lie in another file of the system."""
    path = folder / ENGINE_FILES["float32"]
    model = onnx.load(path)
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "/dev/zero"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
    onnx.save(model, path)


def calibrate(**facts: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / ENGINE_FILES["float32"]
        model = onnx.load(path)
        (entry,) = model.metadata_props
        entry.value = json.dumps(json.loads(entry.value) | facts)
        onnx.save(model, path)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (read_elsewhere, "is not an ONNX file that ONNX Runtime reads"),
        (calibrate(temperature="x"), "does not fit"),
        (calibrate(temperature=0.0), "expected temperature to be from"),
        (calibrate(thresholds={}), "does not fit"),
        (calibrate(temperature=1.0, thresholds={"0.9": [2]}), "expected thresholds to be"),
        (damage, "is not an ONNX file that ONNX Runtime reads"),
        (empty, "is not an ONNX file that ONNX Runtime reads"),
        (take_foreign, "it is another file"),
        (take_probabilities, "it is another file"),
        (take_other_inputs, "to have the inputs and outputs"),
        (change_settings, "to have the inputs and outputs"),
    ],
)
def test_a_file_that_does_not_fit_causes_one_line(
    change: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(shipped_models()[DEFAULT_MODEL], tmp_path / "model")
    change(folder)
    with pytest.raises(FerVitError, match=rf"^[^\n]*model\.onnx[^\n]*{words}[^\n]*$"):
        load(folder, "cpu")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
def test_a_graph_of_some_megabytes_cannot_take_all_memory(tmp_path: Path, astronaut: Array) -> None:
    """It adds the sum of 4 GB of zeros to the logits. A batch of 64 faces is honest."""
    folder = shutil.copytree(shipped_models()[DEFAULT_MODEL], tmp_path / "model")
    path = folder / ENGINE_FILES["float32"]
    model = onnx.load(path)
    logits = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["before" if name == logits else name for name in node.output]
    size = onnx.numpy_helper.from_array(np.array([1 << 30]), "size")
    model.graph.initializer.append(size)
    model.graph.node.extend(
        onnx.helper.make_node(kind, inputs, [output], **options)
        for kind, inputs, output, options in (
            ("ConstantOfShape", ["size"], "zeros", {}),
            ("ReduceSum", ["zeros"], "sum", {"keepdims": 0}),
            ("Add", ["before", "sum"], logits, {}),
        )
    )
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"^[^\n]*model\.onnx cannot compute 1 face \([^\n]*$"):
        load(folder, "cpu").predict(astronaut)
    assert len(load(device="cpu").predict([astronaut] * 64)) == 64


def test_files_of_different_weights_are_not_explained(tmp_path: Path, astronaut: Array) -> None:
    folder = shutil.copytree(shipped_models()[DEFAULT_MODEL], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1}, folder / "model.safetensors")
    model = load(folder, "cpu")
    faces = model.predict(astronaut)
    with pytest.raises(ModelError, match=r"^[^\n]*has different weights[^\n]*--onnx[^\n]*$"):
        model.explain(faces)


@pytest.mark.slow
def test_a_folder_of_a_user_predicts_in_8_bits(
    checkpoint: Path, drawn: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    manifest = drawn / "faces.parquet"
    run("export", folder, "--checkpoint", checkpoint, "--quantize", manifest)
    sizes = {precision: (folder / name).stat().st_size for precision, name in ENGINE_FILES.items()}
    assert sizes["int8"] < sizes["float32"]

    small = load(folder, precision="int8")
    assert isinstance(small.engine, OnnxEngine)
    assert small.engine.path.name == ENGINE_FILES["int8"]
    crops = noise_crops(small.crop_spec, 8)
    difference = abs(
        small.read(crops).probabilities - load(folder, "cpu").read(crops).probabilities
    )
    assert 0 < difference.max() < 0.05

    photo = tmp_path / "face.png"
    photo.write_bytes(encode_png(crops.image[0]))
    words = ["--face=crop", "--checkpoint", folder, "--precision=int8", "--features"]
    run("predict", photo, *words, "--output", tmp_path / "faces.parquet")
    (row,) = pq.read_table(tmp_path / "faces.parquet").to_pylist()
    assert row["status"] == "ok"
    assert sum(name.startswith("feature_") for name in row) == small.engine.width


def test_8_bits_that_a_model_does_not_have_cause_one_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = shutil.copytree(shipped_models()[DEFAULT_MODEL], tmp_path / "model")
    (folder / ENGINE_FILES["int8"]).unlink()
    for name in (folder, checkpoint):
        with pytest.raises(ModelError, match=r"^[^\n]*has no model\.int8\.onnx[^\n]*--quantize"):
            load(name, precision="int8")
    with pytest.raises(FerVitError, match=r"^int8 is for the device cpu"):
        load(precision="int8", device="cuda")
    with pytest.raises(FerVitError, match=r"float32 or int8, but got int4"):
        load(precision="int4")  # type: ignore[arg-type]
    with pytest.raises(FerVitError, match="in memory"):
        load(load_network(folder), precision="int8")
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((9, 9, 3), np.uint8)))
    words = ["predict", tmp_path / "a.png", "--checkpoint", folder, "--precision=int8"]
    assert "has no model.int8.onnx" in fails(capsys, *words)


def test_the_settings_of_a_shipped_model_need_no_network() -> None:
    for name, folder in shipped_models().items():
        assert read_model_settings(read_config(folder, name), name) == load_network(folder).settings


# ------------------------------------------------------------------------------ no heavy imports

WITHOUT_TORCH = """
import os
import sys
from pathlib import Path
import pyarrow
folder = Path({folder!r})
import fer_vit
from fer_vit.commands.predict import predict
from fer_vit.commands.live import live
from fer_vit.app.jobs import Task
from fer_vit.app.tasks import run_task
predict([folder / "photo.png"], output=folder / "faces.csv")
model = fer_vit.load()
assert fer_vit.table(model.predict(folder / "photo.png")).num_rows == 1
rows = model.predict_batch(pyarrow.table({{"path": [str(folder / "photo.png")]}}))
assert rows.num_rows == 1
reading = {{"every": 1}}
task = Task(folder, ["photo.png"], model.name, "faces.json", True, reading, explain=False)
(folder / "job" / "uploads").mkdir(parents=True)
os.chdir(folder / "job" / "uploads")
Path("photo.png").write_bytes((folder / "photo.png").read_bytes())
run_task(task, model, lambda event: None)
assert Path("../faces.json").exists()
"""


@pytest.mark.slow
def test_prediction_loads_no_heavy_package(tmp_path: Path, astronaut: Array) -> None:
    from PIL import Image

    Image.fromarray(astronaut).save(tmp_path / "photo.png")
    code = WITHOUT_TORCH.format(folder=str(tmp_path))
    code += f"print('loaded', *{HEAVY} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["loaded"], done.stderr
