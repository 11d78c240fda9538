"""Chooses the engine of a model and opens it. For an ONNX file, PyTorch is not imported."""

import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from fer_vit.engine.onnx_engine import OnnxEngine, has_cuda
from fer_vit.engine.protocol import Engine
from fer_vit.errors import FerVitError, ModelError
from fer_vit.extras import missing_extra
from fer_vit.model_settings import ModelSettings, read_model_settings
from fer_vit.store.hub import ENGINE_FILES, fetch_folder, is_checkpoint, read_config

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT

Precision = Literal["float32", "int8"]  # a key of `ENGINE_FILES`
PRECISION_HELP = (
    "`float32`, or `int8`: half the time on CPUs, with 8-bit numbers (docs/results/benchmarks.md)."
)
GPU_FILES = ("nvidia[0-9]*", "kfd", "dxg")  # devices of NVIDIA, of AMD, and of WSL


class Opened(NamedTuple):
    """A model that predicts."""

    engine: Engine
    settings: ModelSettings
    folder: Path | None  # the folder with the weights, if the engine is not torch's
    net: "RegionViT | None"  # the network, if the engine is torch's


def has_gpu() -> bool:
    """Returns whether PyTorch is installed and may find a GPU. PyTorch is not imported."""
    if find_spec("torch") is None:
        return False
    is_apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return is_apple or any(any(Path("/dev").glob(name)) for name in GPU_FILES)


def open_model(name: str | Path, device: str, precision: Precision, **hub: Any) -> Opened:
    """Opens a model from a file, a folder or the hub.

    PyTorch computes on a GPU, and for a model without an ONNX file; otherwise ONNX Runtime does, on
    an NVIDIA GPU if onnxruntime-gpu finds one.

    Args:
        name: As for `store.model_folder.read_model`.
        device: "auto", or a device of torch.
        precision: The precision in which the network computes.
        **hub: As for `store.model_folder.read_model`.

    Raises:
        FerVitError: There is no such model or device, or the model's files are damaged.
    """
    if precision not in get_args(Precision):
        names = " or ".join(get_args(Precision))
        raise FerVitError(f"Expected precision {names}, but got {precision}.")
    if precision == "int8" and device not in ("auto", "cpu"):
        raise FerVitError(f"int8 is for the device cpu, but the device is {device}.")
    if precision == "float32" and device == "auto" and has_gpu():
        device = best_device()
    if is_checkpoint(name):
        if precision == "int8":
            raise _no_int8(name)
        return _open_torch(name, device, hub)
    folder = fetch_folder(name, **hub)
    file = folder / ENGINE_FILES[precision]
    if precision == "int8" and not file.is_file():
        raise _no_int8(name)
    without_torch = device == "cuda" and find_spec("torch") is None and has_cuda()
    if not file.is_file() or not (device in ("auto", "cpu") or without_torch):
        return _open_torch(name, device, hub)
    settings = read_model_settings(read_config(folder, name), name)
    place = "cpu" if precision == "int8" else device
    return Opened(OnnxEngine(file, settings, place), settings, folder, None)


def best_device() -> str:
    """Returns torch's name of the best device; imports PyTorch."""
    from fer_vit.engine.torch_engine import best_device  # not at the top: PyTorch may be missing

    return best_device()


def _no_int8(name: str | Path) -> ModelError:
    return ModelError(
        f"{name} has no {ENGINE_FILES['int8']}. Write a folder that has it: "
        f"`fer-vit export FOLDER --checkpoint {name} --quantize MANIFEST`."
    )


def _open_torch(name: str | Path, device: str, hub: dict[str, Any]) -> Opened:
    if find_spec("torch") is None:
        kind = f"A checkpoint, or a folder without {ENGINE_FILES['float32']},"
        raise missing_extra(kind, "torch")
    # not at the top: PyTorch may be missing
    from fer_vit.store.model_folder import load_network

    return open_network(load_network(name, **hub), device)


def open_network(net: "RegionViT", device: str) -> Opened:
    """Opens a network in memory, which is moved to the device."""
    from fer_vit.engine.torch_engine import TorchEngine  # not at the top: PyTorch may be missing

    if device == "auto":
        device = best_device()
    return Opened(TorchEngine(net, device), net.settings, None, net)
