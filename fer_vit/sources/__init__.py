"""Readers of data sets as distributed, one file each, with `read(root, **options) -> Reading`.

A missing data set, or an invalid file, is a FerVitError that names file and line.
"""

from collections.abc import Callable

from fer_vit.data.schema import Reading
from fer_vit.sources import affectnet, drawn, fairface, fer2013, ferplus, folder, rafdb

# The reader of each data set. The options of `read`, if it has any, become options of
# `fer-vit prepare NAME`.
SOURCES: dict[str, Callable[..., Reading]] = {
    "ferplus": ferplus.read,
    "fer2013": fer2013.read,
    "rafdb": rafdb.read,
    "affectnet": affectnet.read,
    "fairface": fairface.read,
    "folder": folder.read,
    "drawn": drawn.read,
}
