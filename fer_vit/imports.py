"""Imports of large libraries."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Turns the garbage collector off while modules are imported.

    torch, torchvision and timm create 650,000 objects, and most of these objects live until the
    end. Repeated scans would take a fifth of the time until `predict` writes the first row.
    """
    gc.disable()
    try:
        yield
    finally:
        # freeze and unfreeze move all objects to the oldest generation without a scan
        gc.freeze()
        gc.unfreeze()
        gc.enable()


def search_current_folder() -> None:
    """Lets Python import modules of the current folder, as `python -m` does.

    This is for a class that the user names. Without one, a console script imports nothing from the
    current folder, which may contain files of somebody else.
    """
    if "" not in sys.path:
        sys.path.append("")
