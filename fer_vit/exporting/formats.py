"""The formats of `fer-vit export`: how each format is written, and which options it takes.

A new format is one entry of `FORMATS`, with its functions.
"""

import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from fer_vit.data.dataset import Batch
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation.logits import labelled_batches
from fer_vit.face import landmarks, yunet
from fer_vit.face.crop import REGIONS
from fer_vit.face.yunet import yunet_path
from fer_vit.files import atomic_write, check_output
from fer_vit.heads import HEADS, target_column
from fer_vit.losses import decode
from fer_vit.predict.recognizer import Recognizer
from fer_vit.store.folder import save_network
from fer_vit.store.hub import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, fetch_folder
from fer_vit.texts import json_text
from fer_vit.wording import describe_entries, join_names

LOGGER = logging.getLogger("fer_vit")
NOTICE = landmarks.LANDMARKS_FILE.with_name("NOTICE")
CALIBRATION_FACES = 512  # most faces that calibrate the 8-bit scales


@dataclass(frozen=True)
class ExportOptions:
    """How a model is written.

    Args:
        models: The names of the exported models, as for `--checkpoint`.
        output: The final path.
        half: Whether the weights have 16 bits.
        faithfulness: The file with the gains of the explanation methods, which are stored with the
            model.
        quantize: A manifest. The model then computes in 8 bits, calibrated on the training faces
            in the manifest.
    """

    models: Sequence[str]
    output: Path
    half: bool = False
    faithfulness: Path | None = None
    quantize: Path | None = None


def calibration_batches(model: Recognizer, manifest: Manifest) -> Iterator[Batch]:
    """Returns batches of training faces that calibrate the 8-bit scales of a model.

    Raises:
        FerVitError: The manifest has other labels, or no training face has a label.
    """
    batches, _ = labelled_batches(model, manifest, "train", max_faces=CALIBRATION_FACES)
    return batches


@dataclass(frozen=True)
class Format:
    """A format of `fer-vit export`.

    Args:
        name: The name of the format in messages.
        meaning: The contents and the purpose of the format, for the help.
        check: A function that raises FerVitError, before any work, for an option that the format
            does not take.
        write: A function that writes a model to a path that does not exist yet. The batches are
            faces that calibrate the 8-bit scales; None: the model is not quantised.
        files: The files in a folder that `--overwrite` may replace; empty if the format is one
            file.
    """

    name: str
    meaning: str
    check: Callable[[ExportOptions], None]
    write: Callable[[Recognizer, Path, ExportOptions, Iterator[Batch] | None], None]
    files: tuple[str, ...] = ()


def find_format(output: Path) -> Format:
    """Returns the format that the name of a file or folder selects.

    A version number in the name of a folder, such as "v1.2", is no suffix.

    Raises:
        FerVitError: No format has this suffix.
    """
    stem, _, ending = output.name.rpartition(".")
    suffix = f".{ending.lower()}" if stem else ""
    if suffix in FORMATS:
        return FORMATS[suffix]
    if suffix[1:2].isdecimal():
        return FORMATS[""]
    names = join_names([entry.name for entry in FORMATS.values()])
    raise FerVitError(f"Expected {names}, but got {output}.")


def write_model(
    model: Recognizer,
    options: ExportOptions,
    overwrite: bool,
    batches: Iterator[Batch] | None = None,
) -> None:
    """Writes a model to `options.output`, in the format that the name selects; logs the file sizes.

    Args:
        model: The model.
        options: How the model is written.
        overwrite: Whether an existing output may be replaced.
        batches: The result of `calibration_batches` if the model is quantised.

    Raises:
        FerVitError: The output exists, or its folder now contains another file.
    """
    output = options.output
    file_format = find_format(output)
    check_output(output, overwrite, file_format.files)
    with atomic_write(output, overwrite=overwrite) as new:
        file_format.write(model, new, options, batches)

    files = sorted(output.iterdir()) if output.is_dir() else [output]
    for file in files:
        LOGGER.info(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


# A folder: weights, settings and model card, with the networks that find faces and landmarks


FACE_FILE_NAMES = (yunet.YUNET_NAME, landmarks.LANDMARKS_FILE.name, NOTICE.name)


def face_files() -> dict[str, Path]:
    """Returns the paths of the files that find faces and landmarks, by `FACE_FILE_NAMES`.

    Raises:
        FerVitError: The file of YuNet is missing.
    """
    paths = (yunet_path(), landmarks.LANDMARKS_FILE, NOTICE)
    return dict(zip(FACE_FILE_NAMES, paths, strict=True))


def check_folder(options: ExportOptions) -> None:
    """Raises FerVitError for an option of ONNX."""
    _check_no_quantize(options)


def write_folder(
    model: Recognizer,
    folder: Path,
    options: ExportOptions,
    batches: Iterator[Batch] | None = None,
) -> None:
    """Writes the folder that `fer_vit.load` and the Hugging Face hub read."""
    net = model.net.half() if options.half else model.net
    save_network(net, folder)

    # The card of the exported model replaces the empty card, and a card that the user has edited
    # in the output folder replaces both.
    for source in card_folders(options.models, options.output):
        card = source / CARD_FILE
        if card.is_file():
            shutil.copy(card, folder)

    for name, file in face_files().items():
        shutil.copyfile(file, folder / name)


def card_folders(models: Sequence[str], output: Path) -> list[Path]:
    """Returns the folders that may contain a model card to keep, the most important folder last."""
    trained = len(models) > 1 or Path(models[0]).is_file()
    if trained:  # a checkpoint has no card
        return [output]
    return [fetch_folder(models[0]), output]


# Files: the graph of the network for any number of faces


def check_program(options: ExportOptions) -> None:
    """Raises FerVitError for an option of another format."""
    _check_no_folder_options(options)
    _check_no_quantize(options)


def write_program(
    model: Recognizer,
    path: Path,
    options: ExportOptions,
    batches: Iterator[Batch] | None = None,
) -> None:
    """Writes a program for `torch.export.load`, with `model_metadata`."""
    program = trace_program(model, example_inputs(model))
    buffer = io.BytesIO()  # torch's file writer aborts the process when the disk is full
    files = {"fer_vit.json": model_metadata(model)}
    torch.export.save(program, buffer, extra_files=files)
    path.write_bytes(buffer.getbuffer())


def check_onnx(options: ExportOptions) -> None:
    """Raises FerVitError for an option of a folder."""
    _check_no_folder_options(options)


def write_onnx(
    model: Recognizer,
    path: Path,
    options: ExportOptions,
    batches: Iterator[Batch] | None = None,
) -> None:
    """Writes an ONNX file with `model_metadata`, quantised to 8 bits if there are `batches`."""
    inputs = example_inputs(model)
    program = trace_program(model, inputs)
    with warnings.catch_warnings():
        # all inputs have the axis `faces`, and torch issues a warning for each input
        warnings.filterwarnings("ignore", "# The axis name: faces")
        graph = torch.onnx.export(
            program,
            dynamic_shapes=dynamic_batch_axis(inputs),
            output_names=graph_outputs(model),
            verbose=False,
        )
    assert graph is not None  # only torch's old exporter returns None
    graph.model.metadata_props["fer_vit"] = model_metadata(model)
    graph.save(path)

    if batches is not None:
        quantize_onnx(path, batches)


FORMATS = {  # the format of each suffix; a name without a suffix is a folder
    "": Format(
        "a folder",
        "model.safetensors, config.json and a model card to fill in, for fer-vit and the Hugging "
        "Face hub, with the networks that find faces and landmarks, and their licences, for the "
        "script in docs/how-to/export.md",
        check_folder,
        write_folder,
        files=(CARD_FILE, WEIGHTS_FILE, CONFIG_FILE, *FACE_FILE_NAMES),
    ),
    ".onnx": Format(
        "NAME.onnx",
        "for ONNX Runtime and others",
        check_onnx,
        write_onnx,
    ),
    ".pt2": Format("NAME.pt2", "for `torch.export.load`", check_program, write_program),
}

# The formats with their meanings, for the help.
FORMATS_HELP = describe_entries({entry.name: entry.meaning for entry in FORMATS.values()})


def _check_no_folder_options(options: ExportOptions) -> None:
    if options.half or options.faithfulness is not None:
        raise FerVitError("`--half` and `--faithfulness` are for folders. Name a folder.")


def _check_no_quantize(options: ExportOptions) -> None:
    if options.quantize is not None:
        raise FerVitError("`--quantize` is for ONNX. Name a file that ends in .onnx.")


class AllHeads(nn.Module):
    """A model that returns the probabilities and the values of each further head.

    Angles are relative to the crop, not to the photo.
    """

    def __init__(self, model: Recognizer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Returns probabilities (B, C), then the values of each further head (B, K)."""
        net = self.model.net
        tokens = net.tokenize(image, boxes, valid)
        tokens = net.encode(tokens)
        probabilities = net.probabilities(net.forward_head(tokens))
        values = [decode(name, head(tokens).float()) for name, head in net.heads.items()]
        return (probabilities, *values)


def graph_outputs(model: Recognizer) -> list[str]:
    """Returns the names of a graph's outputs in order: the probabilities, then further heads."""
    return ["probabilities", *model.net.heads]


def trace_program(model: Recognizer, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """Returns the graph of a model. The graph takes any number of faces.

    The graph returns the probabilities. If the model has further heads, the graph returns a tuple
    in the order of `graph_outputs`.
    """
    graph: nn.Module = AllHeads(model) if len(model.net.heads) else model
    return torch.export.export(graph, inputs, dynamic_shapes=dynamic_batch_axis(inputs))


def dynamic_batch_axis(inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    """Returns torch's declaration, for each input, that the first axis has any length."""
    faces = torch.export.Dim("faces")
    return tuple({0: faces} for _ in inputs)


def example_inputs(model: Recognizer, faces: int = 3) -> tuple[Tensor, ...]:
    """Returns random inputs of the shapes that a model takes.

    Args:
        model: The model.
        faces: The number B of faces, at least 2. With 0 or 1 face, `torch.export` would fix the
            graph to this number.

    Returns:
        Images (B, 3, S, S) in [0, 1]. For a model with regions also boxes (B, R, 4), xyxy in crop
        pixels, and which regions are present (B, R).
    """
    size = model.net.config.img_size
    regions = model.net.layout.num_regions

    corner = torch.rand(faces, regions, 2) * size / 2  # (B, R, 2)
    boxes = torch.cat([corner, corner + size / 3], dim=-1)  # (B, R, 4)
    valid = torch.rand(faces, regions) > 0.2  # (B, R)
    image = torch.rand(faces, 3, size, size)  # (B, 3, S, S)
    return (image, boxes, valid) if regions else (image,)


def model_metadata(model: Recognizer) -> str:
    """Returns the metadata of a graph as JSON.

    The metadata are the labels, the columns and unit of each output, and how a face and its regions
    are cropped.
    """
    facts: dict[str, Any] = {"labels": model.labels, "heads": {}}
    for head, outputs in model.net.settings.outputs.items():
        columns = [target_column(head, output) for output in outputs]
        facts["heads"][head] = {"columns": columns, "unit": HEADS[head].unit}
    facts.update(asdict(model.crop_spec))
    facts["regions"] = {}
    if model.net.layout.num_regions:
        for name in model.crop_spec.regions:
            facts["regions"][name] = REGIONS[name]._asdict()
    return json_text(facts)


def quantize_onnx(path: Path, batches: Iterator[Batch]) -> None:
    """Quantises the convolutions and matrix products of an ONNX file to 8 bits, in place.

    This is static quantisation by ONNX Runtime, with a scale for each channel of the weights. The
    scales are calibrated on the faces in `batches`. With other operations in 8 bits as well, the
    accuracy of ferplus-small fell from 88.5% to 65%.
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
            tensors = (batch.image, batch.boxes, batch.valid)
            return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=False)}

    quant_pre_process(path, path, skip_symbolic_shape=True)
    quantize_static(
        path,
        path,
        BatchReader(),
        per_channel=True,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
        activation_type=QuantType.QUInt8,
    )
