"""Data sets as distributed, a file each: `read(root, **options) -> Reading` declares options.

A data set that is missing or has an invalid file is a FerVitError, which names file and line.
"""

from collections.abc import Callable

from fer_vit.data.schema import Reading
from fer_vit.sources import affectnet, drawn, fairface, fer2013, ferplus, folder, rafdb

# A new one is the last: where two have an option of one name, the first has it without its prefix.
MODULES = (ferplus, fer2013, rafdb, affectnet, fairface, folder, drawn)

# The reader of every data set by the name of its file. Its options become options of `prepare`.
SOURCES: dict[str, Callable[..., Reading]] = {
    module.__name__.rpartition(".")[2]: module.read for module in MODULES
}
