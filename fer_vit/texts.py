"""Text in files: user files in UTF-8, file names as valid Unicode, and values as JSON."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fer_vit.errors import FerVitError
from fer_vit.files import open_input


def check_permission(path: str | Path, error: BaseException) -> None:
    """Raises FerVitError if an error is a PermissionError: the file is then not damaged."""
    if isinstance(error, PermissionError):
        raise FerVitError(
            f"Cannot read {path} ({os.strerror(error.errno or 0)}). Make it readable, or name "
            "another."
        ) from error


def user_text(path: str | Path, remedy: str = "Make it readable, or name another.") -> str:
    """Returns the text of a file that a user has written.

    Raises:
        FerVitError: The file cannot be read, or is not UTF-8.
    """
    try:
        with open_input(path) as file:
            return file.read().decode("utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FerVitError(f"Cannot read {path} ({reason}). {remedy}") from error
    except UnicodeDecodeError as error:
        raise FerVitError(
            f"Expected UTF-8 text, but {path} has other bytes. Save it as UTF-8, or name another."
        ) from error


def as_text(name: str) -> str:
    """Returns a file name as valid Unicode, for tables. Other bytes are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def json_text(value: object, **options: Any) -> str:
    """Returns a value as JSON. NaN and infinity become null, because JSON does not have them.

    `options` are arguments of `json.dumps`.
    """
    return json.dumps(_defined(value), allow_nan=False, **options)


def as_dict(value: Any) -> dict[str, Any]:
    """Returns a JSON-like value if it is an object; else an empty one."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    return {}


def _defined(value: object) -> object:
    """Replaces numbers that are not finite by None in a nested value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _defined(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(item) for item in value]
    return value
