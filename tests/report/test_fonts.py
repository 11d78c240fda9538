"""Labels and file names in any script: which font has their characters."""

import logging

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.ft2font import FT2Font

from fer_vit.report import fonts, rendering
from fer_vit.report.draw import Marked, draw_faces, fitted

FOREIGN = "喜"
"""A character that the standard font lacks."""


@pytest.fixture(autouse=True)
def _unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fonts.find_font.cache_clear()
    fonts.characters_of.cache_clear()
    monkeypatch.setattr(fonts, "REPORTED_CHARACTERS", set())


def drawn_label(label: str) -> np.ndarray:
    box = np.array([10.0, 100.0, 150.0, 190.0])
    return draw_faces(np.zeros((200, 400, 3), np.uint8), [Marked(box, label, 0.5)])


@pytest.mark.parametrize("label", ["müde", "радость", "χαρά", "שמחה", "سعادة"])
def test_a_label_has_a_font_with_all_its_characters(
    label: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = fonts.find_font(frozenset(label))
    assert file is not None
    assert file.name == fonts.STANDARD_FONT
    assert fonts.drawable(label) == label
    assert not caplog.records
    assert drawn_label(label).std() > 0


def test_ascii_has_the_font_of_pillow() -> None:
    assert fonts.find_font(frozenset("happiness …/\\~")) is None


def test_characters_without_a_font_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    standard = [entry for entry in fontManager.ttflist if entry.name == fonts.STANDARD_FONT]
    monkeypatch.setattr(fontManager, "ttflist", standard)
    with caplog.at_level(logging.WARNING, "fer_vit"):
        drawn_label(FOREIGN)
        drawn_label(FOREIGN)
    (record,) = caplog.records
    assert FOREIGN in record.getMessage()
    assert "Noto Sans" in record.getMessage()
    assert fonts.drawable(f"a{FOREIGN}é") == "a?é"
    assert fitted(f"joy {FOREIGN}", 20, 400) == "joy ?"


def test_without_matplotlib_pictures_have_the_characters_of_pillow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fonts, "is_installed", lambda extra: False)
    with caplog.at_level(logging.WARNING, "fer_vit"):
        assert drawn_label("müde").std() > 0
    assert fonts.drawable("müde") == "m?de"
    (record,) = caplog.records
    assert "pip install" in record.getMessage()
    assert "[figures]" in record.getMessage()


def test_each_character_without_a_font_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    standard = [entry for entry in fontManager.ttflist if entry.name == fonts.STANDARD_FONT]
    monkeypatch.setattr(fontManager, "ttflist", standard)
    texts = ["a喜", "b喜怒", "c怒喜", "d哀"]
    with caplog.at_level(logging.WARNING, "fer_vit"):
        for text in texts:
            drawn_label(text)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    for character in "喜怒哀":
        assert "".join(messages).count(character) == 1


def test_a_font_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def get_font(path: str) -> FT2Font:
        opened.append(path)
        return FT2Font(path)

    monkeypatch.setattr(font_manager, "get_font", get_font)
    for text in ["радость", "χαρά", "שמחה", FOREIGN]:
        fonts.find_font(frozenset(text))
    assert opened
    assert len(opened) == len(set(opened))


def test_removed_fonts_and_fonts_of_boxes_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed = FontEntry(fname="removed.ttf", name=fonts.STANDARD_FONT, style="normal", weight=400)
    boxes = FontEntry(fname="boxes.otf", name="Last Resort Font", style="normal", weight=400)
    (standard,) = [file for file in fonts.font_files() if file.name == fonts.STANDARD_FONT][:1]
    usual = FontEntry(fname=standard.path, name="Other Sans", style="normal", weight=400)
    monkeypatch.setattr(fontManager, "ttflist", [boxes, removed, usual])
    assert [file.name for file in fonts.font_files()] == [fonts.STANDARD_FONT, "Other Sans"]
    assert fonts.find_font(frozenset("müde")) == fonts.FontFile("Other Sans", standard.path)


def test_invisible_characters_need_no_font() -> None:
    assert fonts.drawn_characters("a\u200db\u202e") == {"a", "b"}


def test_line_breaks_need_no_font(caplog: pytest.LogCaptureFixture) -> None:
    drawn_label("a\nb")
    figure = Figure()
    figure.text(0, 0, "a\nm\u00fcde")
    rendering.choose_fonts(figure)
    assert fonts.drawn_characters("a\n\tb") == {"a", "b"}
    assert not caplog.records


def test_texts_of_figures_have_a_second_font() -> None:
    figure = Figure()
    plain = figure.text(0, 0, "joy")
    cyrillic = figure.text(0, 1, "радость")
    rendering.choose_fonts(figure)
    assert fonts.STANDARD_FONT in cyrillic.get_fontfamily()
    assert len(plain.get_fontfamily()) < len(cyrillic.get_fontfamily())


FILES = {"Latin": "abc%", "Letters and Kana": "abcかな", "Nagari": "खुश"}
"""The characters of fonts, by their names."""


@pytest.fixture
def three_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [fonts.FontFile(name, name) for name in FILES]
    monkeypatch.setattr(fonts, "font_files", lambda: files)
    monkeypatch.setattr(fonts, "characters_of", lambda path: frozenset(FILES[path]))


@pytest.mark.usefixtures("three_fonts")
def test_a_text_has_one_font_with_all_its_characters(caplog: pytest.LogCaptureFixture) -> None:
    assert fonts.find_font(frozenset("abcかな")) == ("Letters and Kana", "Letters and Kana")
    assert fonts.drawable("खुश") == "खुश"
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "fer_vit"):
        assert fonts.drawable("abc खु") == "abc???"
    (record,) = caplog.records
    assert "ख" in record.getMessage()


@pytest.mark.usefixtures("three_fonts")
def test_texts_of_figures_show_a_replacement_too() -> None:
    figure = Figure()
    shown = figure.text(0, 0, "abc😀")
    rendering.choose_fonts(figure)
    assert shown.get_text() == "abc?"
