"""The command line: LightningCLI for fit, validate and test; plain functions for the other verbs.

Nothing heavy is imported before a verb needs it, so that `fer-vit --help` answers at once.
"""

import gc
import inspect
import os
import re
import signal
import sys
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import docstring_parser
from jsonargparse import ArgumentParser, DefaultHelpFormatter

from fer_vit.errors import FerVitError, short
from fer_vit.hints import next_command
from fer_vit.version import __version__

LIGHTNING_VERBS = {
    "fit": "train a model",
    "validate": "evaluate a checkpoint on the val split",
    "test": "evaluate a checkpoint on the test split",
}
PLAIN_VERBS = {
    "prepare": "make a manifest (one Parquet table, or shards of it) from a data set as its owners distribute it",
    "finetune": "make a model that knows your classes out of your photos, and say how good it is",
    "distill": "mix the predictions of trained models into the labels that a smaller model learns from",
    "predict": "find and classify every face in photos and videos, and write one table",
    "live": "find and classify the faces before a camera, on a page and in a table",
    "visualize": "explain each prediction with pictures and one HTML page",
    "app": "serve a page in the browser that does both, for those who use no terminal",
    "evaluate": "say how good a model or a table of predictions is, for whom, and where it fails",
    "faithfulness": "measure how far these explanations can be trusted",
    "configs": "list the recipes for training (configs) that come with fer-vit, with their results",
    "models": "list the models that are available, with their results",
    "export": "write a model for other programs: safetensors, ONNX or torch.export",
}
EXAMPLES = """\
  fer-vit prepare drawn faces faces.parquet
  fer-vit fit --config drawn --data.manifest faces.parquet
  fer-vit fit --config drawn --data.manifest s3://bucket/shards
  fer-vit finetune photos
  fer-vit test --ckpt_path runs/drawn/version_0/checkpoints/best.ckpt --data.manifest faces.parquet
  fer-vit predict photos
  fer-vit live
  fer-vit visualize photos --checkpoint best.ckpt --output report
  fer-vit app
  fer-vit evaluate faces.parquet --checkpoint best.ckpt
  fer-vit export model.onnx
"""
INTERRUPTED = "interrupted"
RENAMED = {"--most": "--max_faces"}
"""Old names of options, which still work."""
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "dict": "pairs such as {old: new}"}
"""What users call the types that jsonargparse names."""


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """jsonargparse's help, with the line breaks of the description kept, and types by their names."""

    def _expand_help(self, action: Any) -> Any:
        return re.sub(r"<class '(\w+)'>", r"\1", super()._expand_help(action))


def main(args: list[str] | None = None) -> None:
    """Runs `fer-vit` with the arguments `args`; an error that the user can fix is one line and exit code 2."""
    # torch reads this when it is loaded: how long its threads spin while they wait for each other. With the default,
    # training beside one busy process took four times as long; without spinning, an idle machine is a sixth slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    args = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in args
    args = [word for word in args if word != "--debug"]
    try:
        run(args)
        return
    except (FerVitError, OSError, RuntimeError, KeyboardInterrupt) as error:
        line = error_line(error)
        if debug or not line:
            raise
    # Outside the handler: the error keeps the loader's workers alive, and they would end with a traceback.
    print(f"fer-vit: {line}", file=sys.stderr)
    sys.exit(130 if line == INTERRUPTED else 2)


def error_line(error: BaseException) -> str:
    """Returns the line that a user sees for an error; empty for an unexpected one."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, RuntimeError):
        from fer_vit.processes import WORKER_DIED, is_dead_worker  # imports OpenCV, which `--help` does not need

        return f"error: {WORKER_DIED}" if is_dead_worker(error) else ""
    # An OSError raised in a worker has the worker's traceback as its text; the last line is the message.
    words = str(error).strip().splitlines() or [type(error).__name__]
    return f"error: {words[-1]}"


def run(args: list[str]) -> None:
    """Runs a command without catching its errors."""
    verb = args[0] if args else "--help"
    if verb in ("-h", "--help"):
        with suppress(BrokenPipeError):  # by a reader such as `head`, which stops early
            print(help_text())
            sys.stdout.flush()
    elif verb == "--version":
        print(f"fer-vit {__version__}")
    elif verb in PLAIN_VERBS:
        print_next(verb, run_plain(verb, args[1:]))
    elif verb in LIGHTNING_VERBS:
        print_next(verb, import_verb("fer_vit.train.cli").train(args))
    elif verb == "completion":
        print_completion("".join(args[1:]))
    else:
        verbs = ", ".join([*PLAIN_VERBS, *LIGHTNING_VERBS])
        raise FerVitError(f"Expected a verb, one of {verbs}, but got `{verb}`. `fer-vit --help` explains them.")


def print_next(verb: str, given: dict[str, Any]) -> None:
    """Prints the command that usually follows, for a person: not into a pipe or a file, and only in process 0."""
    first = all(os.environ.get(rank, "0") == "0" for rank in ("RANK", "LOCAL_RANK"))
    trial = given.get("checkpoint") == ""  # with `--trainer.fast_dev_run`
    if first and not trial and sys.stdout.isatty():
        print(f"\nNext: {next_command(verb, given)}")


def help_text() -> str:
    """Returns the text of `fer-vit --help`."""
    verbs = "\n".join(f"  {name:<12} {text}" for name, text in {**PLAIN_VERBS, **LIGHTNING_VERBS}.items())
    return (
        f"fer-vit {__version__}: vision transformers for facial expression recognition\n\n"
        f"usage: fer-vit VERB ...   (`fer-vit VERB --help` lists its options)\n\nverbs:\n{verbs}\n\n"
        f"`fer-vit completion bash` (or zsh) prints a script that lets the shell complete verbs and options.\n"
        f"`--debug` with any verb shows the traceback of an error; `fer-vit --version` prints the version.\n\n"
        f"examples:\n{EXAMPLES}"
    )


def import_verb(module: str) -> Any:
    """Imports a verb's module while the garbage collector is off.

    torch, torchvision and timm create 650,000 objects, most of which live until the end: scanning them again and again
    would take a fifth of the time until `predict` writes its first row.
    """
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()  # and unfreeze: moves them to the oldest generation without scanning them
        gc.unfreeze()
        gc.enable()


def run_plain(verb: str, args: list[str]) -> dict[str, Any]:
    """Runs a verb that is a typed function, `commands.<verb>.<verb>`; returns the values of its arguments."""
    function = verb_function(verb)
    flags = {f"--{name}" for name, kind in function.__annotations__.items() if kind in (bool, bool | None)}
    paths = {f"--{name}" for name, kind in function.__annotations__.items() if kind in (Path, Path | None)}
    words = []  # `--max-faces` is accepted as well as `--max_faces`
    for word, following in zip(args, [*args, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name
        name = RENAMED.get(name, name)
        if not word or (name in paths and equals and not value):  # as a path it would be the current folder
            raise FerVitError('Expected a name or a value, but got "". Is a variable of the shell empty?')
        alone = name in flags and not equals and following.lower() not in ("true", "false")
        words.append(f"{name}=true" if alone else name + equals + value)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that half-written files are removed
    try:
        values: dict[str, Any] = verb_parser(verb).parse_args(words).as_dict()
    except ArgumentError as error:
        line = plain_words(" ".join(str(error).split()), words)
        raise FerVitError(f"{line} (`fer-vit {verb} --help` lists the options)") from error
    function(**values)
    return values


def plain_words(message: str, words: Sequence[str]) -> str:
    """Returns jsonargparse's message about `words`; what it says of a wrong value, as users would say it."""
    if not (wrong := re.fullmatch(r'Parser key "(\w+)": (.*?) (?:Got|Given) value: ?(.*)', message)):
        return message
    name, types, value = wrong.groups()
    found = re.findall(r"Expected a (?:<class '(\w+)'>|typing\.Literal\[(.*?)\])", types)
    kinds = [
        KINDS.get(kind, re.sub("', '|, ", " or ", names).strip("'")) for kind, names in found if kind != "NoneType"
    ]
    option = f"--{name}"
    shown = f"`{option}`" if any(word.partition("=")[0] == option for word in words) else name
    return f"Expected {shown} to be {' or '.join(kinds)}, but got {short(value) or 'nothing'}"


def verb_function(verb: str) -> Any:
    """Returns the function that is a plain verb."""
    return getattr(import_verb(f"fer_vit.commands.{verb}"), verb)


def verb_parser(verb: str) -> ArgumentParser:
    """Returns the parser of a plain verb: its function's signature and docstring are the options."""
    function = verb_function(verb)
    parser = ArgumentParser(
        prog=f"fer-vit {verb}",
        description=inspect.cleandoc(function.__doc__).partition("\n\nArgs:")[0],
        formatter_class=HelpFormatter,
        exit_on_error=False,
    )
    several = (list[Path], Sequence[str], list[str] | None)
    lists = {name: kind for name, kind in function.__annotations__.items() if kind in several}
    optional = {  # positional ones that may be left out
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty
    }
    for argument in docstring_parser.parse(function.__doc__).params:
        name, text = argument.arg_name, argument.description
        if lists.get(name) == list[Path]:
            parser.add_argument(name, nargs="+", type=Path, help=text)
        elif lists.get(name) == Sequence[str]:
            parser.add_argument(f"--{name}", nargs="+", default=[], help=text)
        elif name in optional:
            parser.add_argument(name, nargs="?", default=optional[name], help=text)
        elif name in lists:  # an option that may be repeated
            parser.add_argument(f"--{name}", action="append", help=text)
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip={*lists, *optional})
    return parser


def print_completion(shell: str) -> None:
    """Prints the script with which a shell, bash or zsh, completes the verbs and the options of each."""
    if shell not in ("bash", "zsh"):
        raise FerVitError(f"Expected `fer-vit completion bash` or `fer-vit completion zsh`, but got `{shell}`.")
    if not find_spec("shtab"):
        raise FerVitError('Completion needs one more package: pip install "fer-vit[completion]".')
    import shtab

    program = ArgumentParser(prog="fer-vit")
    verbs = program.add_subcommands()
    for verb, text in PLAIN_VERBS.items():
        verbs.add_subcommand(verb, parser := verb_parser(verb), help=text)
        for action in parser._actions:
            if action.dest == "checkpoint":  # a name or a file
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    for verb, text in LIGHTNING_VERBS.items():  # without the Trainer's: with them the script has 60 MB
        parser = ArgumentParser()
        for option in ("--config", "--ckpt_path", "--data.manifest"):
            parser.add_argument(option, type=Path)
        parser.add_argument("--print_config", action="store_true")
        verbs.add_subcommand(verb, parser, help=text)
    print(program.get_completion_script(f"shtab-{shell}"))
