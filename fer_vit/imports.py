"""Imports of large libraries."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Turns the garbage collector off while modules are imported.

    torch, torchvision and timm create 650,000 objects, most of which live until the end: scanning
    them repeatedly would take a fifth of the time until `predict` writes its first row.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # and unfreeze: moves them to the oldest generation without scanning them
        gc.unfreeze()
        gc.enable()
