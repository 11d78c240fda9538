"""The command line: LightningCLI for fit, validate and test, plain functions for other commands.

Large modules are imported when a command needs them, so that `fer-vit --help` is fast.
"""

import errno
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any

from fer_vit.errors import FerVitError, command_line, printable, suggest
from fer_vit.extras import needed_by
from fer_vit.imports import collector_off
from fer_vit.options import Options
from fer_vit.parsers import FIT_OPTIONS, OptionParser
from fer_vit.signals import exit_at_once, exit_on_signals
from fer_vit.version import __version__

LIGHTNING_VERBS = {
    "fit": "train a model, with every option of the training",
    "validate": "evaluate a checkpoint on the val split",
    "test": "evaluate a checkpoint on the test split",
}
PLAIN_VERBS = {
    "predict": "find and classify every face in photos and videos, and write one table",
    "visualize": "explain each prediction with pictures and one HTML page",
    "live": "find and classify faces in front of a camera, on a page and in a table",
    "app": "predict and visualize on a page in the browser",
    "evaluate": "score a model or a table of predictions, overall and by group",
    "compare": "compare the expressions of persons between conditions, with intervals and tests",
    "finetune": "train a model for your classes from your photos and evaluate it",
    "prepare": "write a manifest (one Parquet table) of a data set",
    "crossvalidate": "train and evaluate a model for each fold of the training faces",
    "repeat": "train configs with several seeds, and tabulate mean and standard deviation",
    "faithfulness": "measure how faithful the explanations are",
    "configs": "list the shipped training configs with their results",
    "models": "list the available models with their results",
    "export": "write a model for other programs: safetensors, ONNX or torch.export",
}
VERBS = PLAIN_VERBS | LIGHTNING_VERBS
LISTED = "\n".join(f"  {name:<14} {text}" for name, text in VERBS.items())
HELP = f"""\
fer-vit {__version__}: vision transformers for facial expression recognition

usage: fer-vit COMMAND ...   (`fer-vit COMMAND --help` lists its options)

commands:
{LISTED}

`--debug` shows the traceback of an error; `fer-vit --version` prints the version;
`source <(fer-vit --completion bash)` completes commands and options (also zsh).

examples:
  fer-vit predict photos
  fer-vit visualize photos --output report
  fer-vit live
  fer-vit app
  fer-vit evaluate faces.csv --labels labels.csv
  fer-vit compare faces.csv --by condition --person subject
  fer-vit finetune photos
  fer-vit prepare drawn faces faces.parquet
  fer-vit fit --config drawn --data.manifest faces.parquet
  fer-vit test --ckpt_path runs/drawn/version_0/checkpoints/best.ckpt --data.manifest faces.parquet
  fer-vit export model.onnx
"""
LOGGER = logging.getLogger("fer_vit")
NO_ROOM = "Free some space, or choose another disk."
NO_RIGHTS = "Choose files that you may read, and folders that you may write."
REMEDIES = {  # remedies for errors of the system that no command has described
    errno.ENOSPC: NO_ROOM,
    errno.EDQUOT: NO_ROOM,
    errno.EFBIG: NO_ROOM,
    errno.EACCES: NO_RIGHTS,
    errno.EPERM: NO_RIGHTS,
    errno.EROFS: NO_RIGHTS,
}
INTERRUPTED = "interrupted"
MIN_OPEN_FILES = 64


class LogPrinter(logging.Handler):
    """Prints what fer-vit logs to the current `sys.stdout`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record of one or more lines; raises an error of the output.

        A record may contain file names, labels and metadata from untrusted files.
        """
        lines = record.getMessage().split("\n")
        print("\n".join(map(printable, lines)), flush=True)


@contextmanager
def printed_log() -> Iterator[None]:
    """Prints what fer-vit logs within the block.

    Users of the Python functions configure the logger "fer_vit" instead.
    """
    logger = logging.getLogger("fer_vit")
    level = logger.level
    propagate = logger.propagate
    printer = LogPrinter()
    logger.addHandler(printer)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def raised_in_threads() -> Iterator[None]:
    """Raises the error of a library's thread, such as a full disk, when the block ends.

    The error is logged at once, without the traceback that Python prints. Python handles the errors
    that have no remedy here: torch's threads may lose their connection to workers that have ended.
    """
    errors: list[OSError] = []
    report_others = threading.excepthook

    def keep(failed: threading.ExceptHookArgs) -> None:
        error = failed.exc_value
        if isinstance(error, OSError) and error.errno in REMEDIES:
            errors.append(error)
            LOGGER.warning(error_line(error))
        else:
            report_others(failed)

    threading.excepthook = keep
    try:
        yield
    finally:
        threading.excepthook = report_others
    if errors:
        raise errors[0]


@command_line()
def main(args: list[str] | None = None) -> None:
    """Runs `fer-vit` with the arguments `args`.

    An error that the user can fix is printed as one line, and the exit code is 2.
    """
    # How long torch's threads spin while they wait for each other; torch reads the variable at its
    # import. With the default, training beside one busy process took four times as long. Without
    # spinning, training on an idle machine takes a sixth longer.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # NumPy's threads would spin for 0.1 s at its import: an exponent of two, in processor cycles.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    open_missing_streams()
    args = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in args
    args = [word for word in args if word != "--debug"]
    try:
        with (
            exit_on_signals(),
            printed_log(),
            raised_in_threads(),
        ):
            run_verb(args)
        sys.stdout.flush()
        return
    except BrokenPipeError:  # a reader such as `head` has closed the output
        # without this, Python's flush at exit fails again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)  # as after SIGPIPE
    except (FerVitError, OSError, RuntimeError, KeyboardInterrupt) as error:
        line = error_line(error)
        if debug or not line:
            raise
    # Outside the handler, where Python has deleted `error`: the error would keep the workers of a
    # loader alive, and the workers would print a traceback at exit.
    print(f"fer-vit: {printable(line)}", file=sys.stderr)
    sys.exit(130 if line == INTERRUPTED else 2)


def open_missing_streams() -> None:
    """Opens the standard streams that the caller has closed (`>&-`), for output without a reader.

    Otherwise, the first file that a command opens would get the number of the stream.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - to the end


def error_line(error: BaseException) -> str:
    """Returns the line to print for an error; empty for an unexpected one."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, RuntimeError):
        if type(error).__name__ == "OutOfMemoryError":  # torch raises this error for a GPU
            return (
                "error: The GPU has too little memory. "
                "Free some, lower the batch size, or hide the GPU."
            )
        return ""
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        remedy = REMEDIES.get(error.errno or 0, "")
        if remedy == NO_RIGHTS and not place:  # the error is about a camera or a socket
            remedy = ""
        return f"error: {error.strerror}{place}. {remedy}".rstrip()
    # The text of an OSError from a worker is a traceback. The last line is the message.
    words = str(error).strip().splitlines() or [type(error).__name__]
    return f"error: {words[-1]}"


def run_verb(args: list[str]) -> None:
    """Runs a command without catching its errors."""
    check_open_files()
    check_empty(args)
    verb = args[0] if args else "--help"
    if verb in ("-h", "--help"):
        print(HELP)
    elif verb == "--version":
        print(f"fer-vit {__version__}")
    elif verb == "--completion":
        print(import_verb("fer_vit.completion").completion_script(" ".join(args[1:])))
    elif verb in VERBS and sys.flags.optimize > 1:
        raise FerVitError(
            "The help is made from docstrings, which `python -OO` removes. Remove -OO."
        )
    elif verb in PLAIN_VERBS:
        with needed_by(f"`fer-vit {verb}`"):
            run_plain(verb, args[1:])
    elif verb in LIGHTNING_VERBS:
        with needed_by(f"`fer-vit {verb}`"):
            import_verb("fer_vit.train.fit").train(args)
    else:
        raise FerVitError(
            f"There is no command `{verb}`.{suggest(verb, VERBS)} "
            "`fer-vit --help` lists the commands."
        )


def check_empty(words: Sequence[str]) -> None:
    """Raises FerVitError when a word is empty: an empty path would be the current folder."""
    for word in words:
        if re.fullmatch(r"(--[\w.-]+=)?", word):
            raise FerVitError(
                'Expected a name or a value, but got "". Is a variable of the shell empty?'
            )


def check_open_files() -> None:
    """Raises FerVitError when few files may be open: workers would print endless tracebacks."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        raise FerVitError(
            f"fer-vit needs up to {MIN_OPEN_FILES} open files at once, "
            f"but the limit is {limit}. "
            "Raise it: `ulimit -n 1024`."
        )


def import_verb(module: str) -> Any:
    """Imports a command's module."""
    with collector_off(), exit_at_once():
        return import_module(module)


def run_plain(verb: str, args: list[str]) -> None:
    """Runs a command that is a typed function, `commands.<verb>.<verb>`."""
    module = import_verb(f"fer_vit.commands.{verb}")
    command = getattr(module, verb)
    values: dict[str, Any] = {}
    if FIT_OPTIONS in inspect.signature(command).parameters:
        values[FIT_OPTIONS], args = split_options(args)
    variant = ""
    if args and args[0] in variants(module):
        variant, *args = args
        values["source"] = variant
    parser = verb_parser(verb, module, variant)
    values |= parser.read(args)
    # with `--output -`, the command prints the rows of its table, and only these
    prints_table = values.get("output") == "-"
    with redirect_stdout(sys.stderr if prints_table else sys.stdout):
        for note in parser.notes:
            LOGGER.warning(note)
        result = command(**values)
    if hasattr(module, "show"):  # the command returns its result and does not print it
        module.show(result)


def verb_parser(verb: str, module: Any, variant: str = "") -> OptionParser:
    """Returns the parser of a plain command, the function `module.<verb>`.

    The description is the docstring of the function, and `module.epilog` has texts below the
    options. A `variant` of the command, such as the data set `folder` of `prepare`, has further
    options, in `module.VARIANTS`.
    """
    command = getattr(module, verb)
    description = inspect.cleandoc(command.__doc__)
    for section in ("Args", "Returns"):
        description, _, _ = description.partition(f"\n\n{section}:")
    kinds = [command.options] if hasattr(command, "options") else []
    if variant:
        kinds.append(variants(module)[variant])
        parser = OptionParser(f"{verb} {variant}", description, kinds, skip=["source"])
    else:
        parser = OptionParser(verb, description, kinds)
    if hasattr(module, "epilog"):
        parser.epilog = module.epilog()
    return parser


def variants(module: Any) -> Mapping[str, type[Options]]:
    """Returns the options of the variants of a command by the first word; empty without."""
    return getattr(module, "VARIANTS", {})


FIT_OPTION = re.compile(
    r"--(data|model|trainer|checkpoint)\..+"  # a setting in a group
    r"|--(model|data|seed_everything)(=.*)?"
)


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line into the options of `fit` with their values, and the other words."""
    options: list[str] = []
    others: list[str] = []
    waiting = False  # an option without `=` takes the next word
    for word in words:
        if waiting and not word.startswith("--"):
            options[-1] = f"{options[-1]}={word}"
            waiting = False
        elif FIT_OPTION.fullmatch(word):
            options.append(word)
            waiting = "=" not in word
        else:
            others.append(word)
            waiting = False
    return options, others
