"""The verb `export`: a trained model for other programs."""

import io
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.evaluate.calibration import fit_temperature
from fer_vit.evaluate.labelled import evaluate_logits, labelled_batches
from fer_vit.files import atomic_write, check_output
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.folder import save_network
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, WEIGHTS, find_folder

OTHER = (".safetensors", ".pt", ".pth", ".ckpt", ".zip")
"""Suffixes of files that are not written, and that a folder would hardly have."""

CALIBRATION = 512
"""Faces that the scales of 8 bits are taken from."""


def export(
    output: Path,
    *,
    checkpoint: str | None = None,
    calibrate: Path | None = None,
    half: bool = False,
    quantize: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a trained model for other programs, in the form that OUTPUT's name asks for.

    A folder: model.safetensors, config.json and a model card to fill in; fer-vit and the Hugging Face hub read it.
    NAME.onnx: for ONNX Runtime and others (needs `pip install "fer-vit[onnx]"`). NAME.pt2: for `torch.export.load`.

    Both files take any number of faces: image (B, 3, S, S), RGB in [0, 1]; and if the model has regions, boxes
    (B, R, 4), xyxy in crop pixels, and valid (B, R), whether a region is there. They give probabilities (B, C). Labels,
    regions and how a face is cropped are in the ONNX metadata and in the .pt2's `fer_vit.json`.

    Examples:
        fer-vit export model.onnx

        fer-vit export my-model --checkpoint best.ckpt --calibrate faces.parquet --half

        fer-vit export model.onnx --quantize faces.parquet

        fer-vit export model.pt2 --checkpoint best.ckpt

    Args:
        output: A folder, NAME.onnx or NAME.pt2.
        checkpoint: A checkpoint of `fer-vit fit`, a folder, a name out of `fer-vit models` or "user/name" on the
            Hugging Face hub. Left out: the model that comes with fer-vit.
        calibrate: A manifest. On its val split a temperature is fitted, so that the model is right as often as it says.
        half: Whether a folder's weights are kept in 16 bits, half the size; they are read into 32.
        quantize: A manifest. NAME.onnx then computes in 8 bits, scaled on train faces of it: a quarter of the size, and
            faster on CPUs (docs/benchmarks.md has how much, and what it costs).
        overwrite: Whether an existing file, or a model in the folder, may be replaced; a folder's model card stays.

    Raises:
        FerVitError: The model is not there, or OUTPUT cannot be written.
    """
    kind = check_kind(output, half, quantize is not None, overwrite)
    model = load(checkpoint, "cpu")
    if calibrate is not None:
        logits, target = evaluate_logits(model, calibrate)
        model.net.temperature = fit_temperature(logits, target.argmax(-1))
        print(f"Temperature: {model.net.temperature:.3f}")
    with atomic_write(output, (CARD_FILE, WEIGHTS, CONFIG)) as new:
        if kind == ".onnx":
            write_onnx(model, new)
            if quantize is not None:
                quantize_onnx(model, new, quantize)
        elif kind == ".pt2":
            write_program(model, new)
        else:
            save_network(model.net.half() if half else model.net, new)
            for card in cards(output, checkpoint):
                shutil.copy(card, new)
    files = sorted(output.iterdir()) if output.is_dir() else [output]
    print("\n".join(f"{file}: {file.stat().st_size / 1e6:.1f} MB" for file in files))


def check_kind(output: Path, half: bool, quantize: bool, overwrite: bool) -> str:
    """Says what to write: ".onnx", ".pt2" or "folder". Raises FerVitError when it cannot be, before any work."""
    suffix = "" if output.is_dir() else output.suffix.lower()
    if suffix in OTHER:
        raise FerVitError(f"Expected a folder or a name that ends in .onnx or .pt2, but got {output}.")
    kind = suffix if suffix in (".onnx", ".pt2") else "folder"
    if half and kind != "folder":
        raise FerVitError("`--half` is for folders: name one, or leave it out.")
    if quantize and kind != ".onnx":
        raise FerVitError("`--quantize` is for ONNX: name a file that ends in .onnx, or leave it out.")
    if kind == ".onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise FerVitError('Writing ONNX needs more packages: pip install "fer-vit[onnx]".')
    check_output(output, overwrite)
    if kind == "folder" and output.is_dir() and any(output.iterdir()) and not (output / CONFIG).is_file():
        raise FerVitError(f"{output} holds something other than a model. Choose another folder.")
    return kind


def cards(output: Path, checkpoint: str | None) -> list[Path]:
    """Lists the model cards to keep: that of the model itself, and what was written by hand into the folder before."""
    trained = checkpoint is not None and Path(checkpoint).is_file()
    folders = [output] if trained else [find_folder(checkpoint or DEFAULT), output]
    return [folder / CARD_FILE for folder in folders if (folder / CARD_FILE).is_file()]


def write_program(model: Recognizer, path: Path) -> None:
    """Writes a model as a graph of torch's own."""
    program = torch.export.export(model, example(model), dynamic_shapes=any_number(model))
    data = io.BytesIO()  # torch's own writer ends the process when the disk is full
    torch.export.save(program, data, extra_files={"fer_vit.json": description(model)})
    path.write_bytes(data.getbuffer())


def write_onnx(model: Recognizer, path: Path) -> None:
    """Writes a model as ONNX."""
    program = torch.onnx.export(
        model,
        example(model),
        dynamo=True,
        dynamic_shapes=any_number(model),
        output_names=["probabilities"],
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props["fer_vit"] = description(model)
    program.save(path)


def quantize_onnx(model: Recognizer, path: Path, manifest: Path) -> None:
    """Makes convolutions and matrix products of an ONNX file 8 bits wide, scaled on faces of a manifest.

    Static quantisation by ONNX Runtime, weights channel by channel. With the other operations in 8 bits as well,
    ferplus-small fell from 88.5 to 65 %.
    """
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [entry.name for entry in InferenceSession(path).get_inputs()]
    faces, _ = labelled_batches(model, manifest, "train", max_faces=CALIBRATION)

    class Faces(CalibrationDataReader):
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            part = next(faces, None)
            tensors = () if part is None else (part.image, part.boxes, part.valid)
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


def any_number(model: Recognizer) -> tuple[dict[int, torch.export.Dim], ...]:
    """Says that each input of a model holds any number of faces."""
    return ({0: torch.export.Dim("faces")},) * len(example(model))


def example(model: Recognizer, faces: int = 3) -> tuple[Tensor, ...]:
    """Returns random inputs that fit a model."""
    config, regions = model.net.config, model.net.layout.num_regions
    image = torch.rand(faces, 3, config.img_size, config.img_size)
    if not regions:
        return (image,)
    corner = torch.rand(faces, regions, 2) * config.img_size / 2
    boxes = torch.cat([corner, corner + config.img_size / 3], dim=-1)
    return image, boxes, torch.rand(faces, regions) > 0.2


def description(model: Recognizer) -> str:
    """Says as JSON what the use of a graph needs."""
    spec = model.crop_spec
    return json.dumps(
        {
            "labels": model.labels,
            "regions": spec.regions if model.net.layout.num_regions else [],
            "size": spec.size,
            "align": spec.align,
            "template": spec.template,
        }
    )
