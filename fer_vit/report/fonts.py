"""Finds a font that has the characters of labels and file names, in any script.

Pillow's own font has only ASCII. Other text needs a font of matplotlib or of the system:
`matplotlib.font_manager` lists both, if the extra `figures` is installed.
"""

import logging
import unicodedata
from functools import cache, lru_cache
from typing import NamedTuple

from PIL import ImageFont

from fer_vit.extras import install_command, is_installed

LOGGER = logging.getLogger("fer_vit")

# The characters of Pillow's own font.
PILLOW_CHARACTERS = frozenset(map(chr, range(32, 127))) | {"…"}

STANDARD_FONT = "DejaVu Sans"  # a font that comes with matplotlib
BOX_FONT = "Last Resort"  # names of fonts that draw a box for each character begin so
REPLACEMENT = "?"  # stands for a character without a font
REPORTED_CHARACTERS: set[str] = set()  # characters without a font that have been reported


class FontFile(NamedTuple):
    """A font of matplotlib or the system."""

    name: str
    path: str


def font(text: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns a font for drawing a text from `drawable` with Pillow.

    If Pillow's own font has all characters of the text, this font is returned, so that figures look
    the same on all machines.
    """
    return _load_font(find_font(drawn_characters(text)), size)


def drawable(text: str) -> str:
    """Returns a text with `REPLACEMENT` for each character without a font.

    A warning reports these characters, each once in a process.
    """
    characters = drawn_characters(text)
    file = find_font(characters)
    known = PILLOW_CHARACTERS if file is None else characters_of(file.path)
    missing = characters - known
    new = missing - REPORTED_CHARACTERS
    if new:
        REPORTED_CHARACTERS.update(new)
        LOGGER.warning(
            f"No font has {''.join(sorted(new))} beside the rest of its text: "
            f"pictures show {REPLACEMENT} instead. {_remedy()} Tables and pages are complete."
        )
    return "".join(REPLACEMENT if char in missing else char for char in text)


def drawn_characters(text: str) -> frozenset[str]:
    """Returns the characters of a text that need a glyph.

    Characters such as line breaks and marks of direction (categories Cc and Cf of Unicode) need no
    glyph.
    """
    return frozenset(char for char in text if unicodedata.category(char) not in ("Cc", "Cf"))


@cache
def _load_font(file: FontFile | None, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if file is None:
        return ImageFont.load_default(size)
    return ImageFont.truetype(file.path, size)


def _remedy() -> str:
    """Returns what gives pictures the characters that no font has."""
    if is_installed("figures"):
        return "Install a font of this script, for example one of Noto Sans."
    return f"To use the fonts of this machine: {install_command('figures')}."


@lru_cache(maxsize=1024)
def find_font(characters: frozenset[str]) -> FontFile | None:
    """Returns the first font that has the given characters, or else the standard font.

    None: Pillow's own font has them, or it is the only one.
    """
    files = () if characters <= PILLOW_CHARACTERS else font_files()
    for file in files:
        if characters <= characters_of(file.path):
            return file
    return files[0] if files else None


def font_files() -> tuple[FontFile, ...]:
    """Returns upright fonts of normal weight, starting with `STANDARD_FONT`.

    Fonts without serifs follow, then the other fonts. Without matplotlib, there is none.
    """
    if not is_installed("figures"):
        return ()
    # not at the top: the import takes time, and few labels need it
    from matplotlib.font_manager import fontManager

    entries = []
    for entry in fontManager.ttflist:
        upright = entry.style == "normal" and entry.weight == 400
        if upright and not entry.name.startswith(BOX_FONT):
            entries.append(entry)
    entries.sort(
        key=lambda entry: (
            entry.name != STANDARD_FONT,
            "Sans" not in entry.name,
            entry.name,
            entry.fname,
        )
    )
    return tuple(FontFile(entry.name, entry.fname) for entry in entries)


@cache
def characters_of(path: str) -> frozenset[str]:
    """Returns the characters of a font; none if the file has been removed or is damaged."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
