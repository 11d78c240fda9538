"""Packages that the core doesn't need, by extra, and the command that installs them.

The command names the place that fer-vit was installed from.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fer_vit.errors import FerVitError

EXTRAS = {  # the modules of each extra
    "figures": ("matplotlib",),
    "torch": (
        "albumentations",
        "lightning",
        "onnx",
        "onnxscript",
        "safetensors",
        "tensorboard",
        "timm",
        "torch",
        "torchmetrics",
        "torchvision",
    ),
}
EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def require(extra: str, purpose: str) -> None:
    """Raises FerVitError, with the command that installs an extra, if it is not installed.

    Args:
        extra: The extra.
        purpose: What needs it, such as "`fer-vit fit`".
    """
    if not is_installed(extra):
        raise missing_extra(purpose, extra)


def is_installed(extra: str) -> bool:
    """Returns whether all modules of an extra are installed. None is imported."""
    return all(map(find_spec, EXTRAS[extra]))


@contextmanager
def needed_by(purpose: str) -> Iterator[None]:
    """Raises the error of `require` when an import in the block needs an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise missing_extra(purpose, extra) from error


def missing_extra(purpose: str, extra: str) -> FerVitError:
    """Returns the error for an extra that is not installed."""
    return FerVitError(f"{purpose} needs more packages: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Returns a line for the shell that installs an extra. The line works in every folder."""
    return command_for(installed_from(), extra)


def installed_from() -> dict[str, Any] | None:
    """Returns the source of the installation in the format of direct_url.json (PEP 610).

    pip records it, except for packages from an index: None.
    """
    # not at the top: it imports email
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        recorded = distribution("fer-vit").read_text("direct_url.json")
    except PackageNotFoundError:  # the folder is used without an installation
        return {"url": Path(__file__).parents[1].as_uri()}
    return json.loads(recorded) if recorded else None


def source_folder() -> Path | None:
    """Returns fer-vit's folder that was installed; None: the source is elsewhere, or is a file."""
    address = urlsplit((installed_from() or {"url": ""})["url"])
    if address.scheme != "file":
        return None
    # not at the top: it imports http, ssl and email
    from urllib.request import url2pathname

    return Path(url2pathname(address.path))


def command_for(source: dict[str, Any] | None, extra: str) -> str:
    """Returns the line for a source in the format of direct_url.json; None: from an index."""
    if source is None:
        return f'pip install "fer-vit[{extra}]"'
    url = source["url"]
    if source.get("dir_info", {}).get("editable"):
        # not at the top: it imports http, ssl and email
        from urllib.request import url2pathname

        folder = url2pathname(urlsplit(url).path)
        return f'pip install -e "{folder}[{extra}]"'
    if "vcs_info" in source:
        version = source["vcs_info"]
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    return f'pip install "fer-vit[{extra}] @ {url}"'


def plugin_names(group: str) -> list[str]:
    """Returns the names that other packages register in a group of entry points."""
    from importlib.metadata import entry_points  # not at the top: it imports email

    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str) -> Any:
    """Returns what another package registers by a name.

    Raises FerVitError when its package cannot be imported.
    """
    from importlib.metadata import entry_points  # not at the top: it imports email

    try:
        return entry_points(group=group)[name].load()
    except ImportError as error:
        raise FerVitError(f"{name} ({group}) cannot be imported: {error}") from error
