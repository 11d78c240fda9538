"""The graph of a network for other programs: traced, written as ONNX, and quantised."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from fer_vit.engine.onnx_engine import network_inputs
from fer_vit.face.crop import REGIONS
from fer_vit.face.network import CPU, FATAL
from fer_vit.faces import Crops
from fer_vit.heads import HEADS
from fer_vit.losses import decode
from fer_vit.model.region_vit import RegionViT


class AllHeads(nn.Module):
    """A network that returns the probabilities and the values of each further head.

    Angles are relative to the crop, not to the photo. Without further heads, the network returns
    the probabilities alone.
    """

    def __init__(self, net: RegionViT) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Returns probabilities (B, C), then the values of each further head (B, K)."""
        net = self.net
        tokens = net.encode(net.tokenize(image, boxes, valid))
        probabilities = net.probabilities(net.forward_head(tokens))
        values = [decode(name, head(tokens).float()) for name, head in net.heads.items()]
        return (probabilities, *values) if values else probabilities


def graph_outputs(net: RegionViT) -> list[str]:
    """Returns the names of the outputs of `AllHeads` in order."""
    return ["probabilities", *net.heads]


def trace_program(graph: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """Returns the graph of a module, which takes any number of faces."""
    return torch.export.export(graph.eval(), inputs, dynamic_shapes=dynamic_batch_axis(inputs))


def dynamic_batch_axis(inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Returns torch's declaration, for each input, that the first axis has any length."""
    faces = torch.export.Dim("faces")
    return tuple({0: faces} for _ in inputs)


def example_inputs(net: RegionViT, faces: int = 3) -> tuple[Tensor, ...]:
    """Returns random inputs of the shapes that a network takes.

    Args:
        net: The network.
        faces: The number B of faces, at least 2. With 0 or 1 face, `torch.export` would fix the
            graph to this number.

    Returns:
        Images (B, 3, S, S) in [0, 1]. For a network with regions also boxes (B, R, 4), xyxy in crop
        pixels, and which regions are present (B, R).
    """
    size = net.config.img_size
    regions = net.layout.num_regions

    corner = torch.rand(faces, regions, 2) * size / 2  # (B, R, 2)
    boxes = torch.cat([corner, corner + size / 3], dim=-1)  # (B, R, 4)
    valid = torch.rand(faces, regions) > 0.2  # (B, R)
    image = torch.rand(faces, 3, size, size)  # (B, 3, S, S)
    return (image, boxes, valid) if regions else (image,)


def graph_facts(net: RegionViT) -> dict[str, Any]:
    """Returns the metadata of a graph.

    They are the labels, the columns and unit of each output, and how a face and its regions are
    cropped.
    """
    settings = net.settings
    facts: dict[str, Any] = {"labels": settings.labels, "heads": {}}
    for head, of_head in settings.outputs.by_head.items():
        facts["heads"][head] = {"columns": [*of_head.columns], "unit": HEADS[head].unit}
    facts.update(asdict(settings.crop))
    facts["regions"] = {}
    if net.layout.num_regions:
        for name in settings.crop.regions:
            facts["regions"][name] = REGIONS[name]._asdict()
    return facts


def export_onnx(
    graph: nn.Module, inputs: tuple[Tensor, ...], outputs: Sequence[str], optimize: bool = True
) -> Any:
    """Returns a graph in ONNX, as an `onnx.ModelProto`.

    Args:
        graph: The module.
        inputs: Inputs as from `example_inputs`.
        outputs: The names of the outputs.
        optimize: Whether operations are merged, which rounds the weights.
    """
    program = trace_program(graph, inputs)
    with warnings.catch_warnings():
        # all inputs have the axis `faces`, and torch issues a warning for each input
        warnings.filterwarnings("ignore", "# The axis name: faces")
        written = torch.onnx.export(
            program,
            dynamic_shapes=dynamic_batch_axis(inputs),
            output_names=[*outputs],
            verbose=False,
            optimize=optimize,
        )
    assert written is not None  # only torch's old exporter returns None
    return written.model_proto


def merge_nodes(graph: Any) -> Any:
    """Returns an `onnx.ModelProto` as ONNX Runtime merges its nodes, which halves the time to load.

    A convolution and the normalization after it stay apart: their product would not fit 16 bits.
    """
    import onnx  # not at the top: the package may be missing
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    with TemporaryDirectory() as folder:
        path = Path(folder, "merged.onnx")
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        options.log_severity_level = FATAL
        content = graph.SerializeToString()
        kept = ["ConvBNFusion"]
        InferenceSession(content, options, providers=[CPU], disabled_optimizers=kept)
        merged = onnx.load(path)
    # ONNX Runtime declares all its sets of operators, which other programs may not know.
    used = {node.domain for node in merged.graph.node}
    declared = [opset for opset in merged.opset_import if opset.domain in used]
    del merged.opset_import[:]
    merged.opset_import.extend(declared)
    return merged


def quantize_onnx(path: Path, batches: Iterator[Crops]) -> None:
    """Quantises the convolutions and matrix products of an ONNX file to 8 bits, in place.

    This is static quantisation by ONNX Runtime, with a scale for each channel of the weights. The
    scales are calibrated on the faces in `batches`. With other operations in 8 bits as well, the
    accuracy of a model fell from 88.5% to 65%.

    Weights have 7 bits: processors with AVX2 but without VNNI add two products in 16 bits, which
    overflow with weights of 8 bits.
    """
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [entry.name for entry in InferenceSession(path).get_inputs()]

    class BatchReader(CalibrationDataReader):
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            batch = next(batches, None)
            if batch is None:
                return None
            # a model without regions takes only the image
            inputs = network_inputs(batch)
            return {name: inputs[name] for name in names}

    quant_pre_process(path, path, skip_symbolic_shape=True)
    quantize_static(
        path,
        path,
        BatchReader(),
        per_channel=True,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
        activation_type=QuantType.QUInt8,
        reduce_range=True,
    )
