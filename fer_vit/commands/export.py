"""The command `export`: a trained model for other programs."""

import io
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fer_vit.commands import accept_text
from fer_vit.conformal import fit_thresholds
from fer_vit.data.dataset import Batch
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluate.faces import evaluate_logits, fit_temperature, labelled_batches
from fer_vit.evaluate.scores import face_sums, scores
from fer_vit.face import landmarks, yunet
from fer_vit.face.crop import REGIONS
from fer_vit.face.yunet import yunet_path
from fer_vit.files import atomic_write, check_output, json_text
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.folder import average_networks, save_network
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, WEIGHTS, find_folder
from fer_vit.train.task import log_prior

NOTICE = landmarks.FILE.with_name("NOTICE")
FACE_FILES = (yunet.NAME, landmarks.FILE.name, NOTICE.name)
CALIBRATION = 512  # faces that calibrate the 8-bit scales
CALIBRATES = 100  # faces that temperature and thresholds need; a handful gives extreme values
GAIN = (
    "pixel insertion, blurred"  # the measure of `fer-vit faithfulness` that a model's settings keep
)


@accept_text
def export(
    output: Path,
    *,
    checkpoint: list[str] | None = None,
    calibrate: Path | None = None,
    logit_adjust: float = 0.0,
    half: bool = False,
    quantize: Path | None = None,
    faithfulness: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a trained model for other programs; the name of OUTPUT selects the format.

    A folder: model.safetensors, config.json and a model card to fill in; fer-vit and the Hugging Face hub read it. It
    also has the networks that find faces and landmarks, with their licences, for the script in docs/export.md.
    NAME.onnx: for ONNX Runtime and others (needs `pip install -c constraints.txt ".[onnx]"`). NAME.pt2: for
    `torch.export.load`.

    Both files accept any number of faces: image (B, 3, S, S), RGB in [0, 1]; and if the model has regions, boxes (B, R,
    4), xyxy in crop pixels, and valid (B, R), whether a region is present. They return probabilities (B, C). Labels and
    the geometry of crop and regions are in the ONNX metadata and in the .pt2's `fer_vit.json`; docs/export.md has a
    script that uses them without fer-vit.

    Examples:
        fer-vit export model.onnx

        fer-vit export my-model --checkpoint best.ckpt --calibrate faces.parquet --half

        fer-vit export model.onnx --quantize faces.parquet

        fer-vit export model.pt2 --checkpoint seed0.ckpt --checkpoint seed1.ckpt --checkpoint seed2.ckpt

    Args:
        output: A folder, NAME.onnx or NAME.pt2.
        checkpoint: A checkpoint of `fer-vit fit`, a folder, a name from `fer-vit models` or "user/name" on the Hugging
            Face hub. Default: ferplus-fairface-small. Repeated: the weights are averaged, for models of one
            configuration and the same initial weights; `standardize` is the first model's.
        calibrate: A manifest. On its val split a temperature is fitted, so that confidence matches accuracy, and the
            thresholds of `predict`'s column `prediction_set`.
        logit_adjust: From 0 (off) to 1; raises the recall of rare expressions: this number times the logarithm of an
            expression's frequency in the training faces of `calibrate` is subtracted from its logit (Menon et al.
            2021). A new adjustment replaces an earlier one, and `distill` ignores it. Accuracy and UAR before and after
            are printed.
        half: Store a folder's weights in 16 bits, half the size; they are loaded as 32 bits.
        quantize: A manifest. NAME.onnx then computes in 8 bits, calibrated on its training faces: a quarter of the
            size, and faster on CPUs (see docs/benchmarks.md).
        faithfulness: The faithfulness.json that `fer-vit faithfulness` wrote for this model. A folder stores the gains
            in pixel insertion; the page of `visualize` shows them.
        overwrite: Whether an existing file, or a model in the folder, may be replaced; a folder's model card is kept.

    Returns:
        `output`.
    """
    check_number("logit_adjust", logit_adjust, 0, 1)
    if logit_adjust and calibrate is None:
        raise FerVitError(
            "`--logit_adjust` needs `--calibrate`: a manifest with the frequency of each expression."
        )
    kind = check_kind(output, half, quantize is not None, faithfulness is not None)
    check_output(output, overwrite, () if kind else (CARD_FILE, WEIGHTS, CONFIG, *FACE_FILES))
    names = checkpoint or [DEFAULT]
    model = load(names[0], "cpu") if len(names) == 1 else Recognizer(average_networks(names))
    if calibrate is not None:
        print(calibrate_model(model, calibrate, logit_adjust))
    if faithfulness is not None:
        model.net.settings.faithfulness = read_faithfulness(faithfulness)
    with atomic_write(output) as new:
        if kind:
            write_graph(model, new, kind, quantize)
        else:
            save_network(model.net.half() if half else model.net, new)
            copy_cards(names, output, new)
            copy_face_files(new)
    files = sorted(output.iterdir()) if output.is_dir() else [output]
    print("\n".join(f"{file}: {file.stat().st_size / 1e6:.1f} MB" for file in files))
    return output


def calibrate_model(model: Recognizer, manifest: Path, strength: float) -> str:
    """Stores training prior, logit adjustment, temperature and thresholds; returns a report."""
    model.net.adjust((), 0)
    logits, target = evaluate_logits(model, manifest)
    model.net.adjust(training_prior(manifest, strength), strength)
    truth, change = target.argmax(-1), ""
    if model.net.offset is not None:
        before = summary(model, logits, target)
        logits = logits + model.net.offset
        change = f"On {len(truth)} val faces: {summary(model, logits, target)}; before {before}.\n"
    model.net.settings.temperature = fit_temperature(logits, truth)
    model.net.settings.thresholds = fit_thresholds(
        model.net.probabilities(logits).double().numpy(), truth.numpy()
    )
    found = ", ".join(
        f"{least[0]:.3f} for {coverage} %"
        for coverage, least in model.net.settings.thresholds.items()
    )
    few = f" From only {len(truth)} faces: use at least {CALIBRATES}." * (len(truth) < CALIBRATES)
    return f"{change}Temperature: {model.net.settings.temperature:.3f}. Thresholds of prediction sets: {found}.{few}"


def training_prior(manifest: Path, strength: float) -> list[float]:
    """Returns the share of each label among the training faces (C,); [] without labels."""
    rows = Manifest.read(manifest, ["train"]).split("train")
    targets = rows.targets() if len(rows) else None
    counts = np.zeros(len(rows.names)) if targets is None else targets.sum(0)
    if strength and not counts.all():
        none = ", ".join(
            label for label, count in zip(rows.names, counts, strict=True) if not count
        )
        raise FerVitError(
            f"{manifest} has no training face of {none}: `--logit_adjust` needs some of each."
        )
    return log_prior(torch.from_numpy(counts)).exp().tolist() if counts.any() else []


def read_faithfulness(path: Path) -> dict[str, list[float]]:
    """Returns the gains in pixel insertion by method: mean, low and high, or the mean alone without an interval."""
    try:
        rows = json.loads(path.read_text())["differences"]
        gains = {
            method: [row[GAIN][end] for end in ("mean", "low", "high")]
            for method, row in rows.items()
        }
        known = {
            method: [round(end, 3) for end in gain if end is not None]
            for method, gain in gains.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FerVitError(
            f"Expected a faithfulness.json of `fer-vit faithfulness`, but got {path}."
        ) from error
    return {method: gain for method, gain in known.items() if gain}


def summary(model: Recognizer, logits: Tensor, target: Tensor) -> str:
    """Returns accuracy and UAR of logits (N, C) for target shares (N, C) as text."""
    found = scores(
        face_sums(logits.softmax(-1).double().numpy(), target.numpy()).sum(0), model.labels
    )
    return f"accuracy {found['accuracy']:.1%}, UAR {found['UAR']:.1%}"


def check_kind(output: Path, half: bool, quantize: bool, faithfulness: bool) -> str:
    """Returns the suffix of the file to write, "" for a folder. Raises FerVitError when an option does not fit."""
    suffix = output.suffix.lower()
    kind = suffix if suffix in (".onnx", ".pt2") else ""
    lacks = kind == ".onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime")))
    for wrong, message in (
        # "v1.2" is a folder.
        (
            not kind and suffix[1:2].isalpha(),
            f"Expected a folder, NAME.onnx or NAME.pt2, but got {output}.",
        ),
        (
            kind and (half or faithfulness),
            "`--half` and `--faithfulness` are for folders. Name a folder.",
        ),
        (kind != ".onnx" and quantize, "`--quantize` is for ONNX. Name a file that ends in .onnx."),
        (lacks, 'Writing ONNX needs more packages: pip install -c constraints.txt ".[onnx]".'),
    ):
        if wrong:
            raise FerVitError(message)
    return kind


def copy_cards(names: list[str], output: Path, new: Path) -> None:
    """Keeps the model's own card, and above all one that was edited by hand in the output folder."""
    trained = len(names) > 1 or Path(names[0]).is_file()
    for folder in [output] if trained else [find_folder(names[0]), output]:
        if (folder / CARD_FILE).is_file():
            shutil.copy(folder / CARD_FILE, new)


def copy_face_files(new: Path) -> None:
    """Copies the networks that find faces and landmarks, with their origin and licences, into a folder."""
    for name, file in zip(FACE_FILES, (yunet_path(), landmarks.FILE, NOTICE), strict=True):
        shutil.copyfile(file, new / name)


def write_graph(model: Recognizer, path: Path, kind: str, quantize: Path | None = None) -> None:
    """Writes a model, for any number of faces, as a torch.export program or as ONNX, in 8 bits with a manifest."""
    inputs = example_inputs(model)
    shapes = ({0: torch.export.Dim("faces")},) * len(inputs)
    program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    if kind == ".pt2":
        data = io.BytesIO()  # torch's file writer aborts the process when the disk is full
        torch.export.save(program, data, extra_files={"fer_vit.json": describe_model(model)})
        path.write_bytes(data.getbuffer())
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name: faces")  # the inputs share it
        graph = torch.onnx.export(
            program, dynamic_shapes=shapes, output_names=["probabilities"], verbose=False
        )
    assert graph is not None
    graph.model.metadata_props["fer_vit"] = describe_model(model)
    graph.save(path)
    if quantize is not None:
        quantize_onnx(path, labelled_batches(model, quantize, "train", max_faces=CALIBRATION)[0])


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
            return {
                name: tensor.numpy() for name, tensor in zip(names, tensors, strict=False)
            } or None

    quant_pre_process(path, path, skip_symbolic_shape=True)
    types, operations = {"activation_type": QuantType.QUInt8}, ["Conv", "MatMul", "Gemm"]
    quantize_static(path, path, Faces(), per_channel=True, op_types_to_quantize=operations, **types)


def example_inputs(model: Recognizer, faces: int = 3) -> tuple[Tensor, ...]:
    """Returns random inputs of the shapes that a model takes."""
    size, regions = model.net.config.img_size, model.net.layout.num_regions
    corner = torch.rand(faces, regions, 2) * size / 2
    boxes, valid = torch.cat([corner, corner + size / 3], dim=-1), torch.rand(faces, regions) > 0.2
    image = torch.rand(faces, 3, size, size)
    return (image, boxes, valid) if regions else (image,)


def describe_model(model: Recognizer) -> str:
    """Returns as JSON what users of a graph need: the labels, and how a face and its regions are cropped."""
    names = model.crop_spec.regions if model.net.layout.num_regions else ()
    regions = {name: REGIONS[name]._asdict() for name in names}
    return json_text({"labels": model.labels, **asdict(model.crop_spec), "regions": regions})
