"""Imports of large libraries."""

import gc
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
