"""The commands of the command line: one typed function each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from fer_vit.errors import FerVitError

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT

Result = TypeVar("Result")

# Types of options with several values. For such an option, Python users may pass a single value.
SEVERAL = (Sequence[str], Sequence[int], list[str] | None)


def accept_text(command: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a command that also accepts text for a path, and a single value for a list."""

    @wraps(command)
    def call(*args: Any, **options: Any) -> Result:
        given = signature(command).bind(*args, **options)
        types = get_type_hints(command)  # evaluates annotations that are text
        for name, value in given.arguments.items():
            kind = types.get(name)
            if isinstance(value, str) and kind in (Path, Path | None):
                given.arguments[name] = Path(value)
            elif isinstance(value, str | int) and kind in SEVERAL:
                given.arguments[name] = [value]
            elif kind == list[Path]:
                paths = [value] if isinstance(value, str | Path) else value
                given.arguments[name] = [Path(path) for path in paths]
        return command(*given.args, **given.kwargs)

    return call


def name_files(folder: Path, paths: Iterable[Path]) -> str:
    """Returns a line with the names of the files that a command has written to a folder."""
    return f"Written to {folder}: {', '.join(path.name for path in paths)}"


def find_network(checkpoint: str | None, model_class: str | None) -> str | RegionViT | None:
    """Returns the argument for `load`: the name of a model, or the network of a user's class.

    Args:
        checkpoint: A model as for `load`; with `model_class`, a checkpoint of `fer-vit fit`.
        model_class: The class that trained the checkpoint, such as `my_module.MyTask`. None: a
            class of fer-vit.

    Raises:
        FerVitError: The class cannot be imported, or another class trained the checkpoint.
    """
    if model_class is None:
        return checkpoint
    if checkpoint is None:
        raise FerVitError("`--model` needs the checkpoint of that class. Add `--checkpoint FILE`.")
    # not at the top: the module imports Lightning, which prediction does not need
    from fer_vit.train.custom import load_custom

    return load_custom(checkpoint, model_class)
