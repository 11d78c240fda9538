"""fer-vit: a Lightning-based vision transformer toolkit for facial expression recognition."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT as RegionViT
    from fer_vit.model.region_vit import build_model as build_model
    from fer_vit.predict.recognizer import load as load
    from fer_vit.store.hub import push as push

from fer_vit.version import __version__ as __version__

HOMES = {
    "RegionViT": "fer_vit.model.region_vit",
    "build_model": "fer_vit.model.region_vit",
    "load": "fer_vit.predict.recognizer",
    "push": "fer_vit.store.hub",
}


def __getattr__(name: str) -> Any:
    """Imports lazily what needs torch, so that `fer-vit --help` answers at once."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
