"""The training configs of the package, by name."""

import os
from pathlib import Path

from fer_vit.errors import FerVitError, suggest

CONFIGS = Path(__file__).parents[1] / "configs"
"""In a checkout a link to the folder `configs` at its top level."""


def shipped_configs() -> dict[str, Path]:
    """Returns the configs in the package by file name without suffix."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def find_config(name: str) -> str:
    """Returns the path of a file or shipped config, and YAML text unchanged.

    Raises:
        FerVitError: There is neither.
    """
    if os.path.isfile(name) or ":" in name:
        return name
    configs = shipped_configs()
    if name not in configs:
        raise FerVitError(
            f"Expected a file or a shipped config ({', '.join(configs)}), "
            f"but got {name}.{suggest(name, configs)}"
        )
    return str(configs[name])
