"""Readers of data sets as distributed, one file each, with `read(root, **options) -> Reading`.

A missing data set, or an invalid file, is a FerVitError that names file and line.
"""

from collections.abc import Callable

from fer_vit.data.schema import Reading
from fer_vit.sources import affectnet, drawn, fairface, fer2013, ferplus, folder, rafdb

MODULES = (ferplus, fer2013, rafdb, affectnet, fairface, folder, drawn)

# The reader of each data set by the name of the file. The options of `read`, if it has any, become
# options of `fer-vit prepare NAME`.
SOURCES: dict[str, Callable[..., Reading]] = {
    module.__name__.rpartition(".")[2]: module.read for module in MODULES
}
