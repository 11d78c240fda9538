"""The formats of `fer-vit export`: how each format is written, and which options it takes.

A new format is one entry of `FORMATS`, with its functions. Another package names its `Format` as an
entry point of the group `PLUGINS`.
"""

import io
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

import torch

from fer_vit.errors import FerVitError
from fer_vit.exporting.engine_files import Quantizing, add_facts, write_engine_files
from fer_vit.exporting.graphs import (
    AllHeads,
    example_inputs,
    export_onnx,
    graph_facts,
    graph_outputs,
    quantize_onnx,
    trace_program,
)
from fer_vit.extras import load_plugin, plugin_names, require
from fer_vit.face import landmarks, yunet
from fer_vit.face.yunet import yunet_path
from fer_vit.files import atomic_write, check_output
from fer_vit.options import REPEATED, Options
from fer_vit.predict.recognizer import Recognizer
from fer_vit.store.hub import CARD_FILE, DEFAULT_MODEL, MODEL_FILES, fetch_folder
from fer_vit.store.model_folder import save_network
from fer_vit.texts import json_text
from fer_vit.wording import describe_entries, join_names

LOGGER = logging.getLogger("fer_vit")
PLUGINS = "fer_vit.formats"  # the group of entry points that are a `Format` by suffix without dot
NOTICE = landmarks.LANDMARKS_FILE.with_name("NOTICE")


@dataclass(frozen=True)
class ExportOptions(Options):
    """How a model is written."""

    output: Path
    """The path to write ({FORMATS})."""
    _: KW_ONLY
    checkpoint: Annotated[Sequence[str], REPEATED] = ()
    """The model, as for `predict`. Repeat it to average epochs of one run, or runs with the same
    config and `--model.init`."""
    half: bool = False
    """Store a folder's weights in 16 bits, half the size."""
    onnx: bool = False
    """Add model.onnx to a folder, to predict without PyTorch."""
    quantize: Path | None = None
    """A manifest whose faces calibrate 8-bit computing: a quarter of the size, faster on CPUs. A
    folder also gets model.onnx."""
    faithfulness: Path | None = None
    """The model's faithfulness.json, for a folder; `visualize` shows its gains."""

    @property
    def models(self) -> Sequence[str]:
        """The names of the exported models."""
        return self.checkpoint or [DEFAULT_MODEL]


@dataclass(frozen=True)
class Format:
    """A format of `fer-vit export`.

    Args:
        name: The name of the format in messages.
        meaning: The contents and the purpose of the format, for the help.
        check: A function that raises FerVitError, before any work, for an option that the format
            does not take.
        write: A function that writes a model to a path that does not exist yet. `Quantizing` are
            the faces that calibrate 8 bits; None: nothing is quantised.
        files: The files in a folder that `--overwrite` may replace; empty if the format is one
            file.
    """

    name: str
    meaning: str
    check: Callable[[ExportOptions], None]
    write: Callable[[Recognizer, Path, ExportOptions, Quantizing | None], None]
    files: tuple[str, ...] = ()


def find_format(output: Path) -> Format:
    """Returns the format that the name of a file or folder selects.

    A version number in the name of a folder, such as "v1.2", is no suffix.

    Raises:
        FerVitError: Neither fer-vit nor another package has a format of this suffix.
    """
    stem, _, ending = output.name.rpartition(".")
    suffix = f".{ending.lower()}" if stem else ""
    if suffix in FORMATS:
        return FORMATS[suffix]
    installed = plugin_names(PLUGINS)
    if suffix[1:] in installed:
        plugin: Format = load_plugin(PLUGINS, suffix[1:])
        return plugin
    if suffix[1:2].isdecimal():
        return FORMATS[""]
    others = [f"NAME.{name}" for name in installed]
    names = join_names([*(entry.name for entry in FORMATS.values()), *others])
    raise FerVitError(f"Expected {names}, but got {output}.")


def write_model(
    model: Recognizer,
    options: ExportOptions,
    overwrite: bool,
    quantizing: Quantizing | None = None,
) -> None:
    """Writes a model to `options.output`, in the format that the name selects; logs the file sizes.

    Args:
        model: The model.
        options: How the model is written.
        overwrite: Whether an existing output may be replaced.
        quantizing: The faces that calibrate 8 bits; None: nothing is quantised.

    Raises:
        FerVitError: The output exists, or its folder now contains another file.
    """
    output = options.output
    file_format = find_format(output)
    check_output(output, overwrite, file_format.files)
    with atomic_write(output, overwrite=overwrite) as new:
        file_format.write(model, new, options, quantizing)

    files = sorted(output.iterdir()) if output.is_dir() else [output]
    for file in files:
        size = file.stat().st_size
        in_words = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
        LOGGER.info(f"{file}: {in_words}")


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
    """Raises FerVitError when a package is missing."""
    if options.onnx or options.quantize is not None:
        require("torch", "Writing ONNX")


def write_folder(
    model: Recognizer,
    folder: Path,
    options: ExportOptions,
    quantizing: Quantizing | None = None,
) -> None:
    """Writes the folder that `fer_vit.load` and the Hugging Face hub read."""
    net = model.net.half() if options.half else model.net
    save_network(net, folder)
    if options.onnx or quantizing is not None:
        write_engine_files(folder, quantizing)

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
    quantizing: Quantizing | None = None,
) -> None:
    """Writes a program for `torch.export.load`, with `model_metadata`."""
    program = trace_program(AllHeads(model.net), example_inputs(model.net))
    buffer = io.BytesIO()  # torch's file writer aborts the process when the disk is full
    files = {"fer_vit.json": json_text(graph_facts(model.net))}
    torch.export.save(program, buffer, extra_files=files)
    path.write_bytes(buffer.getbuffer())


def check_onnx(options: ExportOptions) -> None:
    """Raises FerVitError for an option of a folder, or when a package is missing."""
    _check_no_folder_options(options)
    require("torch", "Writing ONNX")


def write_onnx(
    model: Recognizer,
    path: Path,
    options: ExportOptions,
    quantizing: Quantizing | None = None,
) -> None:
    """Writes an ONNX file with `model_metadata`, quantised to 8 bits if there are `batches`."""
    import onnx  # not at the top: the package may be missing

    net = model.net
    graph = export_onnx(AllHeads(net), example_inputs(net), graph_outputs(net))
    facts = graph_facts(net) | {"returns": "probabilities"}
    if quantizing is not None:
        onnx.save(graph, path)
        quantize_onnx(path, quantizing.train)
        graph = onnx.load(path)
    add_facts(graph, facts)
    onnx.save(graph, path)


FORMATS = {  # the format of each suffix; a name without a suffix is a folder
    "": Format(
        "a folder",
        "for fer-vit and the Hugging Face hub, with a model card to fill in",
        check_folder,
        write_folder,
        files=(*MODEL_FILES, *FACE_FILE_NAMES),
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
    if options.half or options.onnx or options.faithfulness is not None:
        raise FerVitError("`--half`, `--onnx` and `--faithfulness` are for folders. Name a folder.")


def _check_no_quantize(options: ExportOptions) -> None:
    if options.quantize is not None:
        raise FerVitError("`--quantize` is for ONNX. Name a file that ends in .onnx, or a folder.")
