"""Writes the pages of docs/reference that are made from code: `make reference`.

Each page is a function that returns Markdown; `PAGES` lists them. A test fails when a file differs
from its page.
"""

import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import docstring_parser
from fastapi import FastAPI

from docs.limits import SECTIONS as LIMITS
from fer_vit import cli
from fer_vit.app import api, uploads
from fer_vit.cli import verb_parser
from fer_vit.commands.predict import PredictOptions
from fer_vit.data import schema
from fer_vit.data.transforms import AugmentConfig
from fer_vit.fields import INTERVAL_FIELDS, MANIFEST_FIELDS, PEOPLE_FIELDS, Field, all_face_fields
from fer_vit.heads import HEADS, MEANS, WEAK, WEAK_MEANING, HeadOutputs
from fer_vit.model.config import RegionViTConfig
from fer_vit.options import (
    REPEATED,
    Options,
    option_fields,
    option_texts,
    option_types,
    split_type,
)
from fer_vit.parsers import FIT_OPTIONS
from fer_vit.store.hub import CONFIG_FILE, DEFAULT_MODEL, shipped_models
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.module import DEFAULT_NETWORK, RegionViTModule
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask
from fer_vit.wording import join_names

REFERENCE = Path(__file__).parent / "reference"
NOTICE = "<!-- `make reference` writes this page from the code. Change the code instead. -->"
PAGE_WIDTH = 120
KINDS = {
    bool: "`true` or `false`",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


class Setting(NamedTuple):
    """An option of a command, a key of a config, or a field of a request."""

    name: str
    values: str  # what it accepts, in words
    default: str
    meaning: str


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; line breaks and bars in cells are replaced."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    """Returns a text that fits into a cell of a Markdown table."""
    return " ".join(prose(text).split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Returns a docstring's text for Markdown: stars and angles outside of code are literal."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):  # every second part is code
        parts[index] = re.sub(r"[*<>]", r"\\\g<0>", parts[index])
    return "`".join(parts)


def describe_kind(kind: Any) -> str:
    """Returns in words which values an annotation accepts."""
    if kind in KINDS:
        return KINDS[kind]
    if get_origin(kind) is Literal:
        return join_names([f"`{value}`" for value in get_args(kind)], "or")
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not NoneType]
        return " or ".join(dict.fromkeys(map(describe_kind, members)))
    if get_origin(kind) is dict:
        return "names with values"
    if get_origin(kind) in (tuple, list, Sequence):
        return "a list"
    return describe_kind(str if callable(kind) and kind.__name__ != "path" else Path)


def describe_default(value: Any) -> str:
    """Returns a default as a user types it; empty if there is none."""
    if value is None or value == math.inf or value in ("", [], ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


# ---------------------------------------------------------------------------- commands


def commands_page() -> str:
    """Returns the page of all commands with their options."""
    lines = [
        "# Commands",
        "Write options with `-` or `_` (`--min-score`, `--min_score`). A flag needs no value. "
        "`--debug` shows the traceback of an error.",
        table(
            ("command", "purpose"),
            ((f"[{verb}](#{verb})", text) for verb, text in cli.VERBS.items()),
        ),
    ]
    for verb in cli.PLAIN_VERBS:
        lines += command_section(verb)
    for verb in cli.LIGHTNING_VERBS:
        lines += [
            f"## {verb}",
            f"{cli.LIGHTNING_VERBS[verb].capitalize()}. The options are the "
            "[settings](settings.md).",
        ]
    return "\n\n".join(lines)


def command_section(verb: str) -> list[str]:
    """Returns the section of a command that is a typed function.

    Options that equal those of `predict` are named, and described there.
    """
    module = import_module(f"fer_vit.commands.{verb}")
    command = getattr(module, verb)
    parser = verb_parser(verb, module)
    text, _, examples = str(parser.description).partition("Examples:\n")
    commands = [line.strip() for line in examples.splitlines() if line.strip()]
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    lines = [f"## {verb}", *map(prose, paragraphs)]
    if commands:
        lines.append("\n".join(f"    {command}" for command in commands))
    own = command_settings(command.options) if hasattr(command, "options") else []
    shared = []
    if verb != "predict":
        of_predict = command_settings(PredictOptions)
        shared = [f"`{setting.name}`" for setting in own if setting in of_predict]
        own = [setting for setting in own if setting not in of_predict]
    if own:
        lines.append(settings_list(own))
    if shared:
        lines.append(f"As for [predict](#predict): {', '.join(shared)}.")
    for name, options in cli.variants(module).items():
        further = [setting for setting in command_settings(options) if setting.name != "ROOT"]
        if further:
            lines += [f"For `{name}` also:", settings_list(further)]
    if parser.epilog:
        lines.append("[Columns](columns.md) lists the columns of the tables.")
    return lines


def command_settings(options: type[Options]) -> list[Setting]:
    """Returns the inputs and options of a command, inputs first."""
    types = option_types(options)
    texts = option_texts(options)  # type: ignore[arg-type]
    settings = []
    for field in option_fields(options):
        if field.name == FIT_OPTIONS:
            continue
        kind, details = split_type(types[field.name])
        default = "required" if field.default is MISSING else describe_default(field.default)
        if kind is bool:
            values = "flag"
            default = ""
        elif get_origin(kind) is Sequence:
            values = describe_kind(get_args(kind)[0])
            values += "; may be repeated" if REPEATED in details else ", one or more"
            if default != "required":
                default = describe_default(" ".join(field.default))
        else:
            values = describe_kind(kind)
        name = f"--{field.name}" if field.kw_only else field.name.upper()
        settings.append(Setting(name, values, default, texts[field.name]))
    return sorted(settings, key=lambda setting: setting.name.startswith("--"))


def settings_list(settings: Iterable[Setting]) -> str:
    """Returns a list of settings, as their meanings are too long for the cells of a table."""
    lines = []
    for setting in settings:
        default = setting.default
        if default.startswith("`"):
            default = f"default {default}"
        facts = ", ".join(filter(None, (setting.values, default)))
        meaning = " ".join(prose(setting.meaning).split())
        lines.append(f"- `{setting.name}` ({facts}): {meaning}".removesuffix(": "))
    return "\n".join(lines)


# ---------------------------------------------------------------------------- configs


def settings_page() -> str:
    """Returns the page of the keys of configs."""
    lines = [
        "# Settings of `fit`",
        "Keys of a config, and options of `fit`, `validate` and `test` (`--model.lr 3e-4`). Later "
        "options and configs override earlier ones; `--print_config` prints them all. `trainer.*` "
        "has the arguments of [Lightning's "
        "Trainer](https://lightning.ai/docs/pytorch/stable/common/trainer.html), "
        "`checkpoint.*` the arguments of its `ModelCheckpoint`, and `ckpt_path` names the "
        "checkpoint to resume. `task` is `classification` (the default) or `pretraining`.",
    ]
    for title, kind, prefix in SECTIONS:
        lines += [f"## {title}", settings_list(class_settings(kind, prefix))]
    return "\n\n".join(lines)


SECTIONS = (
    ("The network", RegionViTConfig, "model.network"),
    ("Optimisation of either task", RegionViTModule, "model"),
    ("Classification", FERTask, "model"),
    ("Pretraining", MaskedPretraining, "model"),
    ("Data", FaceDataModule, "data"),
    ("Augmentation", AugmentConfig, "data.augment"),
)
"""The classes whose arguments are keys: title, class, prefix of the keys."""
FILLED_IN = {"model.labels", "model.outputs", "data.spec", "data.unlabelled"}
"""Keys that `fit` takes from the data or the task."""


def class_settings(kind: type, prefix: str) -> list[Setting]:
    """Returns the arguments of a class, without those that have their own section
    or are filled in.
    """
    documented = docstring_parser.parse(inspect.cleandoc(kind.__doc__ or "")).params
    meanings = {argument.arg_name: argument.description or "" for argument in documented}
    own_section = {section_prefix for _, _, section_prefix in SECTIONS}
    settings: list[Setting] = []
    for name, parameter in inspect.signature(kind).parameters.items():
        key = f"{prefix}.{name}"
        passed_on = parameter.kind is parameter.VAR_KEYWORD  # to the base class, a section above
        if passed_on or key in FILLED_IN or key in own_section:
            continue
        value = getattr(DEFAULT_NETWORK, name) if kind is RegionViTConfig else parameter.default
        default = "required" if value is parameter.empty else describe_default(value)
        values = describe_kind(parameter.annotation)
        settings.append(Setting(key, values, default, meanings.get(name, "")))
    return settings


# ---------------------------------------------------------------------------- tables


def columns_page() -> str:
    """Returns the page of the columns of all tables that predictions are written to."""
    parts = {
        "Faces": (
            "`predict --output`, `live --output`, `fer_vit.table` and the API",
            [field for field in all_face_fields() if field.name not in MEANS],
        ),
        "People": ("`predict --summary`: a row for each person in a video", PEOPLE_FIELDS),
        "Intervals": (
            "`predict --intervals`: a row for each expression of a person without a change",
            INTERVAL_FIELDS,
        ),
    }
    lines = [
        "# Columns of tables",
        "An asterisk stands for several names: one for each expression, movement or feature. "
        "Points and boxes are in pixels of the photo, x to the right and y down, from its upper "
        "left corner. Left and right are the person's, except in `box_left` and `box_right`. Any "
        "cell can be empty: `None` in Python, nothing in CSV. If a table has the movements of both "
        "sides, it also has their [means](../how-to/heads.md#means-of-both-sides), such as "
        f"`{next(iter(MEANS))}`.",
    ]
    for title, (source, fields) in parts.items():
        lines += [f"## {title}", f"{source}.", columns_table(fields)]
    lines += [
        "## How well outputs agree",
        "The default model's [card](../../fer_vit/weights/ferplus-fairface/README.md"
        "#movements-and-pose) has Pearson's r of each output with its targets. "
        f"{WEAK_MEANING} These are {WEAK}: {weak_columns()}.",
    ]
    return "\n\n".join(lines)


def weak_columns() -> str:
    """Returns the weak columns of the default model, then the means of two sides with one."""
    config = json.loads((shipped_models()[DEFAULT_MODEL] / CONFIG_FILE).read_text("utf-8"))
    outputs = HeadOutputs.of_names(config["outputs"], DEFAULT_MODEL).with_r(config["r"])
    weak = [output.column for output in outputs if output.is_weak]
    weak += [mean.name for mean in outputs.means if mean.is_weak]
    return ", ".join(f"`{name}`" for name in weak)


def columns_table(fields: Iterable[Field]) -> str:
    """Returns a table of columns; what only some tables have is in the meaning."""
    rows = []
    for field in fields:
        values = f"{field.type}, {field.unit}" if field.unit else field.type
        rows.append((f"`{field.name}`", values, field.description))
    return table(("column", "values", "meaning"), rows)


def manifest_page() -> str:
    """Returns the page of the manifest: columns, the text of `data.schema`,
    targets of further heads.
    """
    columns = columns_table(MANIFEST_FIELDS)
    _, _, text = inspect.cleandoc(schema.__doc__ or "").partition("\n\n")
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{output}`" for output in head.outputs) or f"`{head.prefix}NAME`",
            f"{head.low:g} to {head.high:g}",
            head.unit,
        )
        for name, head in HEADS.items()
    ]
    targets = table(("head", "columns", "values", "unit"), rows)
    parts = ["# Manifest", "`fer-vit prepare` writes it.", columns, text]
    return "\n\n".join([*parts, "## Targets of further heads", targets])


# ---------------------------------------------------------------------------- REST


def rest_page() -> str:
    """Returns the page of the REST API of `fer-vit app`."""
    app = FastAPI()
    jobs: Any = SimpleNamespace(models=[], columns={}, outputs={})
    api.add_jobs(app, jobs)
    api.add_results(app, jobs)
    rows = []
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            rows.append((f"`{method.upper()} {path}`", operation["description"]))
    formats = ", ".join(f"`{kind}`" for kind in api.TABLE_TYPES)
    lines = [
        "# REST API",
        "Served by `fer-vit app` ([how to use it](../how-to/rest.md)). Its OpenAPI schema is at "
        "`/openapi.json`.",
        table(("request", "result"), rows),
        "## Fields of a request",
        "`POST /api/predict` and `POST /api/report` take a form with the photos and clips as "
        "`files`, and these fields:",
        model_table(uploads.FormOptions),
        "## Tables",
        "`POST /api/predict` returns the [columns of `predict`](columns.md#faces), in the format "
        f"that the header `Accept` names: {formats}.",
        "## Fields of a report",
        model_table(api.Report),
        "## Errors",
        f"The statuses are {', '.join(map(str, api.ERROR_STATUSES))}. The response has one field:",
        model_table(api.Problem),
        "If too many clients are connected, the server answers with the status 503 and plain text.",
    ]
    return "\n\n".join(lines)


def model_table(model: Any) -> str:
    """Returns the fields of a request or response."""
    fields = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else describe_default(field.default)
        fields.append(
            Setting(name, describe_kind(field.annotation), default, field.description or "")
        )
    return settings_list(fields)


# ---------------------------------------------------------------------------- limits


def limits_page() -> str:
    """Returns the page of limits."""
    lines = [
        "# Limits",
        "Sizes above which nothing is read, and values that decide about faces.",
    ]
    for title, limits in LIMITS.items():
        lines += [f"## {title}", table(("limit", "value", "meaning"), limits())]
    return "\n\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "columns.md": columns_page,
    "manifest.md": manifest_page,
    "rest.md": rest_page,
    "limits.md": limits_page,
}
"""The pages by file name."""


def wrap(line: str) -> str:
    """Returns a line of a page, broken where it is long; rows of tables stay."""
    if line.startswith("|") or len(line) <= PAGE_WIDTH:
        return line
    return textwrap.fill(
        line,
        PAGE_WIDTH,
        subsequent_indent="  " if line.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def render(name: str) -> str:
    """Returns the content of a page's file."""
    lines = [NOTICE, "", *map(wrap, PAGES[name]().split("\n")), ""]
    return "\n".join(lines)


def main() -> None:
    """Writes every page."""
    for name in PAGES:
        (REFERENCE / name).write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    main()
