"""Writes model.onnx and model.int8.onnx, with which a model's folder predicts without PyTorch.

    python -m fer_vit.exporting.engine_files FOLDER [MANIFEST]

writes the files of a folder anew; the second file needs a manifest.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fer_vit.data.manifest import Manifest
from fer_vit.engine.choice import Opened
from fer_vit.engine.onnx_engine import FIRST_OUTPUTS, METADATA, RETURNS, OnnxEngine
from fer_vit.exporting.calibration import (
    calibration_halves,
    fit_calibration,
    labelled_batches,
    predict_logits,
)
from fer_vit.exporting.graphs import (
    example_inputs,
    export_onnx,
    graph_facts,
    merge_nodes,
    quantize_onnx,
)
from fer_vit.faces import Crops
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer, load_torch
from fer_vit.store.hub import ENGINE_FILES
from fer_vit.store.model_folder import hash_weights, load_network
from fer_vit.texts import json_text

CALIBRATION_FACES = 512  # most faces that calibrate the 8-bit scales
MIN_HALVED = 256  # smaller tensors would save nothing


class Quantizing(NamedTuple):
    """The faces that calibrate a network of 8 bits."""

    manifest: Manifest
    train: Iterator[Crops]  # some of its training faces, for the scales


def choose_quantizing(model: Recognizer, manifest: Manifest) -> Quantizing:
    """Returns the faces that calibrate a model.

    Raises:
        FerVitError: The manifest has other labels, or no training face has a label.
    """
    train = labelled_batches(model, manifest, "train", CALIBRATION_FACES)
    return Quantizing(manifest, train.batches)


class RawNetwork(nn.Module):
    """A network that returns what `RawOutputs` has."""

    def __init__(self, net: RegionViT) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Returns logits (B, C), features (B, D), and the raw outputs of further heads (B, K)."""
        net = self.net
        tokens = net.encode(net.tokenize(image, boxes, valid))
        pooled = net.pool(tokens).x  # (B, D), or (B, C, D)
        features = pooled if pooled.ndim == 2 else pooled.mean(1)
        return (net.score(pooled), features, *(head(tokens) for head in net.heads.values()))


def write_engine_files(folder: Path, quantizing: Quantizing | None = None) -> None:
    """Writes model.onnx to a model's folder; with `quantizing`, also model.int8.onnx.

    Raises FerVitError when the folder cannot be read, or the manifest has no labelled val faces of
    two persons.
    """
    import onnx  # not at the top: the package may be missing

    net = load_network(folder)
    outputs = [*FIRST_OUTPUTS, *net.heads]
    facts = graph_facts(net) | {"returns": RETURNS, "weights": hash_weights(net.state_dict())}
    torch.manual_seed(0)
    inputs = example_inputs(net)
    plain = export_onnx(RawNetwork(net), inputs, outputs, optimize=False)
    name_types(plain)
    plain = merge_nodes(plain)
    store_half(plain)
    add_facts(plain, facts)
    onnx.save(plain, folder / ENGINE_FILES["float32"])
    if quantizing is None:
        return

    path = folder / ENGINE_FILES["int8"]
    onnx.save(export_onnx(RawNetwork(net), inputs, outputs), path)
    quantize_onnx(path, quantizing.train)
    small = onnx.load(path)
    facts["weights"] = f"{facts['weights']} int8"
    add_facts(small, facts)
    onnx.save(small, path)

    engine = OnnxEngine(path, net.settings)
    model = Recognizer(Opened(engine, net.settings, folder, None))
    faces, batches, target = labelled_batches(model, quantizing.manifest)
    logits = predict_logits(model, batches)
    offset = net.settings.offset()
    if offset is not None:
        logits = logits + torch.from_numpy(offset)
    calibration = fit_calibration(logits, target.argmax(-1), calibration_halves(faces))
    facts |= {"temperature": calibration.temperature, "thresholds": calibration.thresholds}
    add_facts(small, facts)
    onnx.save(small, path)


def add_facts(graph: Any, facts: dict[str, Any]) -> None:
    """Records metadata in an `onnx.ModelProto`, in place of earlier metadata."""
    del graph.metadata_props[:]
    graph.metadata_props.add(key=METADATA, value=json_text(facts))


def name_types(graph: Any) -> None:
    """Names the type of each conversion in an `onnx.ModelProto`, in place.

    ONNX Runtime warns about conversions to the type of another value.
    """
    from onnx import helper, shape_inference

    inferred = shape_inference.infer_shapes(graph).graph
    types = {value.name: value.data_type for value in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        types[value.name] = value.type.tensor_type.elem_type
    for node in graph.graph.node:
        if node.op_type == "CastLike":
            value, like = node.input
            cast = helper.make_node("Cast", [value], node.output, node.name, to=types[like])
            node.CopyFrom(cast)


def store_half(graph: Any) -> None:
    """Stores the weights of an `onnx.ModelProto` in 16 bits where that is exact, in place."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in graph.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < MIN_HALVED:
            continue
        half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}_half"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


def main(folder: str, manifest: str | None = None) -> None:
    """Writes the files of a folder anew."""
    quantizing = None
    if manifest is not None:
        faces = Manifest.read(Path(manifest))
        quantizing = choose_quantizing(load_torch(folder, "cpu"), faces)
    write_engine_files(Path(folder), quantizing)


if __name__ == "__main__":
    main(*sys.argv[1:])
