"""The training configs in the package, by name."""

import os
from pathlib import Path

import yaml
from jsonargparse import get_loader

from fer_vit.errors import FerVitError, short, suggest
from fer_vit.texts import user_text

# The folder of the shipped configs; in a checkout, a link to the top-level folder `configs`.
CONFIGS = Path(__file__).parents[1] / "configs"

# Most levels of lists and mappings in a config. About 100,000 levels crash the process in libyaml.
MAX_LEVELS = 100


def shipped_configs() -> dict[str, Path]:
    """Returns the paths of the configs in the package by file name without suffix."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def check_settings_text(text: str, name: str) -> None:
    """Raises FerVitError for text that is not YAML with settings. Messages call the text `name`.

    The text is read in the same way as by jsonargparse: dates are text, and `1e-3` is a number.
    """
    expected = "Expected settings in YAML, such as `model: {lr: 1.0e-3}`"
    try:
        if yaml_depth(text) > MAX_LEVELS:
            raise FerVitError(f"{expected}, but {name} has more than {MAX_LEVELS} levels.")
        root = yaml.compose(text, yaml.SafeLoader)
        settings = get_loader("yaml")(text)
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise FerVitError(f"{expected}, but {name} has {place}{error.problem}.") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # characters or numbers that YAML does not have, or a value that does not fit its tag
        raise FerVitError(f"{expected}, but {name} has other text ({short(error)}).") from error
    if not isinstance(root, yaml.MappingNode):  # jsonargparse reads `model:` alone as text
        content = "has no settings" if settings is None else f"has {short(settings)}"
        raise FerVitError(f"{expected}, but {name} {content}.")


def yaml_depth(text: str) -> int:
    """Returns how deep lists and mappings in YAML are nested, counted up to `MAX_LEVELS` + 1.

    Raises YAMLError like `yaml.parse`.
    """
    depth = 0
    most = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            most = max(most, depth)
            if most > MAX_LEVELS:
                break
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return most


def find_config(name: str) -> str:
    """Returns the path of a file or shipped config; returns YAML text unaltered.

    Raises:
        FerVitError: There is no such file or config, or the file is not readable YAML with
            settings.
    """
    if os.path.isfile(name):
        check_settings_text(user_text(name), name)
        return name
    if ":" in name:
        check_settings_text(name, "the text")
        return name
    configs = shipped_configs()
    if name not in configs:
        raise FerVitError(
            f"Expected a file or a shipped config ({', '.join(configs)}), "
            f"but got {name}.{suggest(name, configs)}"
        )
    return str(configs[name])
