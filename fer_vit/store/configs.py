"""The training configs of the package, by name."""

import os
from pathlib import Path

import yaml

from fer_vit.errors import FerVitError, short, suggest
from fer_vit.files import user_text

CONFIGS = Path(__file__).parents[1] / "configs"
"""In a checkout a link to the folder `configs` at its top level."""


def shipped_configs() -> dict[str, Path]:
    """Returns the configs in the package by file name without suffix."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def check_config(path: str) -> None:
    """Raises FerVitError for a file that is not readable YAML with settings."""
    expected = "Expected settings in YAML, such as `model: {lr: 1.0e-3}`"
    try:
        settings = yaml.safe_load(user_text(path))
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise FerVitError(f"{expected}, but {path} has {place}{error.problem}.") from error
    except (yaml.YAMLError, ValueError) as error:  # characters or dates that YAML does not have
        raise FerVitError(f"{expected}, but {path} has other text ({short(error)}).") from error
    if not isinstance(settings, dict):
        came = "is empty" if settings is None else f"has {short(settings)}"
        raise FerVitError(f"{expected}, but {path} {came}.")


def find_config(name: str) -> str:
    """Returns the path of a file or shipped config, and YAML text unchanged.

    Raises:
        FerVitError: There is neither, or the file is not readable YAML with settings.
    """
    if os.path.isfile(name):
        check_config(name)
        return name
    if ":" in name:
        return name
    configs = shipped_configs()
    if name not in configs:
        raise FerVitError(
            f"Expected a file or a shipped config ({', '.join(configs)}), "
            f"but got {name}.{suggest(name, configs)}"
        )
    return str(configs[name])
