"""The command that installs an extra of fer-vit, such as `app`, from where fer-vit came."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fer_vit.errors import FerVitError


def missing_extra(purpose: str, extra: str) -> FerVitError:
    """Returns the error for packages that are not installed.

    Args:
        purpose: What needs the packages, such as "The page".
        extra: The extra of fer-vit with these packages.
    """
    return FerVitError(f"{purpose} needs more packages: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Returns a line for the shell that installs an extra. The line works in every folder.

    pip records the source of an installation in direct_url.json (PEP 610), except for packages from
    an index.
    """
    try:
        recorded = distribution("fer-vit").read_text("direct_url.json")
    except PackageNotFoundError:  # the folder is used without an installation
        return command_for({"url": Path(__file__).parents[1].as_uri()}, extra)
    return command_for(json.loads(recorded) if recorded else None, extra)


def command_for(source: dict[str, Any] | None, extra: str) -> str:
    """Returns the line for a source in the format of direct_url.json; None: from an index."""
    if source is None:
        return f'pip install "fer-vit[{extra}]"'
    url = source["url"]
    if source.get("dir_info", {}).get("editable"):
        folder = url2pathname(urlsplit(url).path)
        return f'pip install -e "{folder}[{extra}]"'
    if "vcs_info" in source:
        version = source["vcs_info"]
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    return f'pip install "fer-vit[{extra}] @ {url}"'
