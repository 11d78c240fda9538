"""Computes a network with ONNX Runtime, without PyTorch."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fer_vit.engine.protocol import Calibration, RawOutputs
from fer_vit.errors import ModelError, short
from fer_vit.face.network import CPU, open_network
from fer_vit.faces import Crops
from fer_vit.geometry import Array
from fer_vit.model_settings import ModelSettings, check_ranges, read_settings
from fer_vit.processes import threads
from fer_vit.system.untrusted import MEGA, memory_limit
from fer_vit.texts import check_permission
from fer_vit.wording import counted

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

FACES_PER_THREAD = 8  # one thread computes up to 8 faces as fast as two threads

# Limits of memory, because a graph from elsewhere may allocate any amount, when it is read and when
# it computes. The weights are expanded from 16 bits and copied; the largest networks of timm take
# 200 MB for a face.
MEMORY_OF_FILE = 500 * MEGA
MEMORY_PER_BYTE = 8
MEMORY_PER_THREAD = 2_000 * MEGA

CUDA = "CUDAExecutionProvider"  # of the package onnxruntime-gpu

RETURNS = "logits"  # what a file for an engine returns, in its metadata
METADATA = "fer_vit"  # the key of the metadata in an ONNX file
FIRST_OUTPUTS = ("logits", "features")
CALIBRATION_KEYS = [entry.name for entry in fields(Calibration)]


def network_inputs(crops: Crops) -> dict[str, Any]:
    """Returns the inputs of an exported network by name.

    They are images (B, 3, S, S) in [0, 1], boxes (B, R, 4) and which regions are present (B, R).
    """
    image = np.ascontiguousarray(crops.image.transpose(0, 3, 1, 2), np.float32) / 255
    return {"image": image, "boxes": crops.boxes, "valid": crops.valid}


def has_cuda() -> bool:
    """Returns whether ONNX Runtime can compute on an NVIDIA GPU."""
    import onnxruntime  # not at the top: it takes 0.1 s

    return CUDA in onnxruntime.get_available_providers()


class OnnxEngine:
    """The network in an ONNX file of `exporting.engine_files`.

    ONNX Runtime has no threads of its own here, because they do not survive a fork. Large batches
    are shared between threads of Python instead, which wait for no lock meanwhile.
    """

    def __init__(self, path: Path, settings: ModelSettings, device: str = "cpu") -> None:
        """Reads a file; `device` may be "cpu", "cuda" or "auto".

        Raises FerVitError when the file is damaged, from elsewhere, or does not fit the settings.
        """
        self.path = path
        try:
            self._content = path.read_bytes()
        except OSError as error:
            check_permission(path, error)
            raise ModelError(f"{path} cannot be read ({error}).") from error
        self._providers = [CPU] if device == "cpu" or not has_cuda() else [CUDA, CPU]
        self._session = self._open()
        # onnxruntime-gpu computes on the CPU where it finds no GPU.
        self.device = "cuda" if CUDA in self._session.get_providers() else "cpu"
        facts = self._read_facts()
        self.heads = [*settings.outputs.by_head]
        self.width = self._check(settings)
        self.takes_regions = len(self._session.get_inputs()) > 1
        self.calibration = self._read_calibration(facts, settings)
        self.fingerprint: str = facts["weights"]

    def _open(self) -> "InferenceSession":
        memory = MEMORY_OF_FILE + MEMORY_PER_BYTE * len(self._content)
        try:
            with self._limit(memory):
                return open_network(self._content, self._providers)
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise ModelError(
                f"{self.path} is not an ONNX file that ONNX Runtime reads "
                f"({short(' '.join(str(error).split()))}). Export the model again."
            ) from error

    def _limit(self, memory: int) -> AbstractContextManager[None]:
        """Limits the memory of a block on the CPU; the driver of a GPU takes any amount."""
        return nullcontext() if CUDA in self._providers else memory_limit(memory)

    def _read_facts(self) -> dict[str, Any]:
        """Returns the metadata.

        Raises FerVitError for a file that is not an engine's, such as one for other programs.
        """
        text = self._session.get_modelmeta().custom_metadata_map.get(METADATA, "{}")
        try:
            facts = json.loads(text)
            if facts["returns"] != RETURNS or not isinstance(facts["weights"], str):
                raise ValueError
        except (ValueError, LookupError, TypeError) as error:
            raise ModelError(
                f"Expected {self.path} to return the logits of a model of fer-vit, but it is "
                "another file. Write the folder with `fer-vit export FOLDER --onnx`."
            ) from error
        return dict(facts)

    def _read_calibration(
        self, facts: dict[str, Any], settings: ModelSettings
    ) -> Calibration | None:
        """Returns the file's own calibration. None: it has the model's.

        Raises FerVitError when numbers are missing or out of range.
        """
        own = {key: facts[key] for key in CALIBRATION_KEYS if key in facts}
        if not own:
            return None
        calibration = read_settings(Calibration, own, self.path)
        check_ranges(replace(settings, **asdict(calibration)), self.path)
        return calibration

    def _check(self, settings: ModelSettings) -> int:
        """Returns the width of the features.

        Raises FerVitError when inputs or outputs do not fit the settings.
        """
        crop = settings.crop
        inputs = {"image": [3, crop.size, crop.size]}
        if len(self._session.get_inputs()) > 1:
            inputs["boxes"] = [len(crop.regions), 4]
            inputs["valid"] = [len(crop.regions)]
        outputs = {"logits": [len(settings.labels)]}
        for head, of_head in settings.outputs.by_head.items():
            outputs[head] = [len(of_head)]
        given = {entry.name: entry.shape[1:] for entry in self._session.get_outputs()}
        (width,) = given.pop("features", [None])
        actual = {entry.name: entry.shape[1:] for entry in self._session.get_inputs()} | given
        expected = inputs | outputs
        if actual != expected or not isinstance(width, int):
            raise ModelError(
                f"Expected {self.path} to have the inputs and outputs {short(expected)}, as its "
                f"config.json, but it has {short(actual)}. Export the model again."
            )
        return width

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._session = self._open()

    def run(self, crops: Crops) -> RawOutputs:
        """Returns the raw outputs for one or more crops."""
        chunks = [*crops.split(FACES_PER_THREAD)]
        count = min(threads(), len(chunks))
        try:
            with self._limit(count * MEMORY_PER_THREAD), ThreadPoolExecutor(count) as pool:
                parts = [*pool.map(self._run_chunk, chunks)]
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise ModelError(
                f"{self.path} cannot compute {counted(len(crops), 'face')} "
                f"({short(' '.join(str(error).split()))}). Export the model again."
            ) from error
        logits, features, *heads = (np.concatenate(part) for part in zip(*parts, strict=True))
        return RawOutputs(logits, features, dict(zip(self.heads, heads, strict=True)))

    def _run_chunk(self, crops: Crops) -> list[Array]:
        names = [entry.name for entry in self._session.get_inputs()]
        inputs = network_inputs(crops)
        outputs = [*FIRST_OUTPUTS, *self.heads]
        return list(self._session.run(outputs, {name: inputs[name] for name in names}))
