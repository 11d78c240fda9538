"""A trained model as a graph for other programs: torch.export and ONNX."""

import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fer_vit.data.sample import Batch
from fer_vit.face.regions import REGIONS
from fer_vit.predict.recognizer import Recognizer


def write_program(model: Recognizer, path: Path) -> None:
    """Writes a model as a torch.export program."""
    inputs = example_inputs(model)
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic_batch(inputs))
    data = io.BytesIO()  # torch's file writer aborts the process when the disk is full
    torch.export.save(program, data, extra_files={"fer_vit.json": describe_model(model)})
    path.write_bytes(data.getbuffer())


def write_onnx(model: Recognizer, path: Path) -> None:
    """Writes a model as ONNX."""
    inputs, names = example_inputs(model), ["probabilities"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name: faces")  # the inputs share it
        program = torch.onnx.export(
            model, inputs, dynamo=True, dynamic_shapes=dynamic_batch(inputs), output_names=names, verbose=False
        )
    assert program is not None
    program.model.metadata_props["fer_vit"] = describe_model(model)
    program.save(path)


def quantize_onnx(path: Path, batches: Iterator[Batch]) -> None:
    """Quantises the convolutions and matrix products of an ONNX file to 8 bits, in place, calibrated on some faces.

    Static quantisation by ONNX Runtime, weights channel by channel. With the other operations in 8 bits as well,
    ferplus-small fell from 88.5 to 65 %.
    """
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [entry.name for entry in InferenceSession(path).get_inputs()]

    class Faces(CalibrationDataReader):
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            batch = next(batches, None)
            tensors = () if batch is None else (batch.image, batch.boxes, batch.valid)
            return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=False)} or None

    quant_pre_process(path, path, skip_symbolic_shape=True)
    quantize_static(
        path,
        path,
        Faces(),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
    )


def dynamic_batch(inputs: tuple[Tensor, ...]) -> tuple[dict[int, torch.export.Dim], ...]:
    """Declares that each input may hold any number of faces."""
    return ({0: torch.export.Dim("faces")},) * len(inputs)


def example_inputs(model: Recognizer, faces: int = 3) -> tuple[Tensor, ...]:
    """Returns random inputs of the shapes that a model takes."""
    config, regions = model.net.config, model.net.layout.num_regions
    image = torch.rand(faces, 3, config.img_size, config.img_size)
    if not regions:
        return (image,)
    corner = torch.rand(faces, regions, 2) * config.img_size / 2
    boxes = torch.cat([corner, corner + config.img_size / 3], dim=-1)
    return image, boxes, torch.rand(faces, regions) > 0.2


def describe_model(model: Recognizer) -> str:
    """Returns as JSON what users of a graph need: the labels, and how a face and its regions are cropped."""
    names = model.crop_spec.regions if model.net.layout.num_regions else ()
    regions = {name: REGIONS[name]._asdict() for name in names}
    return json.dumps({"labels": model.labels, **asdict(model.crop_spec), "regions": regions})
