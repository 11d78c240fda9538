"""Finds fonts that have the characters of labels and file names, in any script.

Pillow's own font has only ASCII. Other text needs a font of matplotlib or of the system:
`matplotlib.font_manager` lists both. Pillow draws a text with one font. Matplotlib draws a text
with several fonts, which texts in two scripts may need.
"""

import logging
import unicodedata
from collections.abc import Iterator, Set as AbstractSet
from functools import cache, lru_cache
from typing import NamedTuple

from PIL import ImageFont

LOGGER = logging.getLogger("fer_vit")

# The characters of Pillow's own font.
PILLOW_CHARACTERS = frozenset(map(chr, range(32, 127))) | {"…"}

STANDARD_FONT = "DejaVu Sans"  # a font that comes with matplotlib
BOX_FONT = "Last Resort"  # names of fonts that draw a box for each character begin so
REPORTED_CHARACTERS: set[str] = set()  # characters without a font that have been reported


class FontFile(NamedTuple):
    """A font of matplotlib or the system."""

    name: str
    path: str


def font(text: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns a font for drawing a text with Pillow.

    If Pillow's own font has all characters of the text, this font is returned, so that figures look
    the same on all machines.
    """
    file = find_font(drawn_characters(text))
    return _load_font(file, size)


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


@lru_cache(maxsize=1024)
def find_font(characters: frozenset[str]) -> FontFile | None:
    """Returns a font that has the given characters; None if Pillow's own font has them.

    If no font has all characters, the font that lacks fewest is returned. A warning reports the
    missing characters, each character once in a process.
    """
    if characters <= PILLOW_CHARACTERS:
        return None
    file, missing = _best_font(characters)
    _report(missing)
    return file


@lru_cache(maxsize=1024)
def find_fonts(characters: frozenset[str]) -> tuple[FontFile, ...]:
    """Returns fonts that together have the given characters; () if Pillow's own font has them.

    A warning reports the characters that no font has, each character once in a process.
    """
    files: list[FontFile] = []
    missing = characters
    while not missing <= PILLOW_CHARACTERS:
        file, still_missing = _best_font(missing)
        if still_missing == missing:
            _report(missing - PILLOW_CHARACTERS)
            break
        files.append(file)
        missing = still_missing
    return tuple(files)


def _best_font(characters: frozenset[str]) -> tuple[FontFile, frozenset[str]]:
    """Returns the font that lacks fewest of the given characters, and the characters it lacks."""
    files = font_files()
    best = next(files)
    fewest = missing_characters(best, characters)
    for file in files:
        if not fewest:
            break
        missing = missing_characters(file, characters)
        if len(missing) < len(fewest):
            best = file
            fewest = missing
    return best, fewest


def _report(missing: frozenset[str]) -> None:
    """Logs the missing characters that have not been reported before, with their scripts."""
    new = "".join(sorted(missing - REPORTED_CHARACTERS))
    REPORTED_CHARACTERS.update(new)
    if new:
        scripts = ", ".join(sorted({script_of(character) for character in new}))
        LOGGER.warning(
            f"No font of this machine has {new} ({scripts}): pictures show boxes instead. Install "
            "a font of this script, for example one of Noto Sans. Tables and pages are complete."
        )


def script_of(character: str) -> str:
    """Returns the script of a letter, such as "CJK" or "Hiragana", from its name in Unicode.

    Returns "symbols" for other characters, such as emoji.
    """
    if unicodedata.category(character)[0] not in "LM":  # letters and marks
        return "symbols"
    word = unicodedata.name(character, "unnamed").split()[0]
    return word if word == "CJK" else word.capitalize()


def font_files() -> Iterator[FontFile]:
    """Yields upright fonts of normal weight, starting with `STANDARD_FONT`.

    Fonts without serifs follow, then the other fonts.
    """
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
    for entry in entries:
        yield FontFile(entry.name, entry.fname)


def missing_characters(file: FontFile, characters: AbstractSet[str]) -> frozenset[str]:
    """Returns the characters that a font lacks."""
    code_points = characters_of(file.path)
    return frozenset(char for char in characters if ord(char) not in code_points)


@cache
def characters_of(path: str) -> frozenset[int]:
    """Returns the code points of a font; none if the file has been removed or is damaged."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
