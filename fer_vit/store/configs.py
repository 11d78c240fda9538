"""The configs that come with fer-vit, by name."""

import os
from pathlib import Path

from fer_vit.errors import FerVitError

CONFIGS = Path(__file__).parents[1] / "configs"
"""In a checkout a link to the folder `configs` at its top level."""


def shipped_configs() -> dict[str, Path]:
    """Returns the configs in the package by name: that of the file, after a folder's and `/` if it lies in one."""
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in sorted(CONFIGS.glob("**/*.yaml"))}


def find_config(name: str) -> str:
    """Returns the path of a config: a file of that name, else the one in the package. Settings in YAML are kept.

    Raises:
        FerVitError: There is neither.
    """
    if os.path.isfile(name) or ":" in name:
        return name
    if name not in (configs := shipped_configs()):
        raise FerVitError(f"Expected a file, or a config that is shipped ({', '.join(configs)}), but got {name}.")
    return str(configs[name])
