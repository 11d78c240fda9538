"""The commands of the command line: one function of `Options` each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from fer_vit.errors import FerVitError
from fer_vit.options import Options, Port

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The model of a command."""

    checkpoint: str | None = None
    """A name from `fer-vit models` (default: the marked one), "user/name" on the Hugging Face hub,
    a folder of `fer-vit export` or a checkpoint of `fer-vit fit`."""
    model: str | None = None
    """Your class that trained the checkpoint, such as my_module.MyTask."""

    def find_network(self) -> str | RegionViT | None:
        """Returns the argument for `load`: the name of a model, or the network of a user's class.

        Raises:
            FerVitError: The class cannot be imported, or another class trained the checkpoint.
        """
        return find_network(self.checkpoint, self.model)


@dataclass(frozen=True, kw_only=True)
class HostOptions(Options):
    """Where the page of a command is served, and by which names."""

    host: str = "localhost"
    """The address to listen at, such as "0.0.0.0" for other machines. Anyone who reaches it can use
    the page."""
    hostnames: Sequence[str] = ()
    """Names of this machine that clients may use besides localhost and its IP address."""
    port: Port = 8000
    """The port of the page; 0 selects a free port."""
    public: str | None = None
    """The address that users open if a reverse proxy serves the page."""

    @property
    def names(self) -> list[str]:
        """The host names that clients may use, besides the one of a reverse proxy."""
        return [self.host, *self.hostnames]

    def listen(self) -> tuple[socket, str]:
        """Listens at the address; returns the socket and its URL.

        Prints a warning if other machines can reach it. Raises FerVitError when the address cannot
        be used.
        """
        # not at the top: the help needs no server
        from fer_vit.app.guard import LOCAL_NAMES
        from fer_vit.app.server import listen

        listener, address = listen(self.host, self.port)
        if self.host not in LOCAL_NAMES:
            warning = f"anyone who reaches {address} can use it: no password, no encryption"
            print(f"fer-vit: warning: {warning}", file=sys.stderr)
        return listener, address


def name_files(folder: Path, paths: Iterable[Path]) -> str:
    """Returns a line with the names of the files that a command has written to a folder."""
    return f"Written to {folder}: {', '.join(path.name for path in paths)}"


def find_network(checkpoint: str | None, model_class: str | None) -> str | RegionViT | None:
    """Returns the argument for `load`, as `ModelOptions.find_network`.

    Args:
        checkpoint: A model as for `load`; with `model_class`, a checkpoint of `fer-vit fit`.
        model_class: The class that trained the checkpoint, such as `my_module.MyTask`. None: a
            class of fer-vit.
    """
    if model_class is None:
        return checkpoint
    if checkpoint is None:
        raise FerVitError("`--model` needs the checkpoint of that class. Add `--checkpoint FILE`.")
    # not at the top: the module imports Lightning, which prediction does not need
    from fer_vit.train.custom import load_custom

    return load_custom(checkpoint, model_class)
