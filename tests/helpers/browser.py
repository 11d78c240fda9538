"""A real browser, and pages that must not go wrong in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.helpers.marks import slow
from tests.helpers.processes import PATIENCE

LIGHT_IN_DEFAULT = [(1280, "light"), *slow((390, "dark"), (1280, "dark"), (390, "light"))]
DARK_IN_DEFAULT = [(390, "dark"), *slow((1280, "light"), (1280, "dark"), (390, "light"))]
"""Widths and colour schemes of pages: the default tests of one page have a wide light screen, those
of another a small dark one.
"""


@contextmanager
def chromium(*args: str) -> Iterator[Browser]:
    """Yields Chromium, or skips the test where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser is here: install chromium")
    expect.set_options(timeout=1000 * PATIENCE)  # its default of 5 s is short on a busy machine
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", *args], timeout=1000 * PATIENCE
        )
        browser.new_context()  # of the pages that `opened` opens
        yield browser
        browser.close()


def opened(browser: Browser, address: str) -> tuple[Page, list[str]]:
    """Opens a page; returns it, and a list of all that goes wrong in it or that it logs
    from now on.
    """
    shared = browser.contexts[0]  # another context takes as long as the page
    page = shared.new_page()
    wrong = list[str]()
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append("a dialog was opened"))
    page.goto(address)
    return page, wrong


@contextmanager
def on_screen(browser: Browser, file: Path, width: int, scheme: str) -> Iterator[Page]:
    """Opens a page in a window of some width and colour scheme; scripts of tests may run in it."""
    screen = {"width": width, "height": 800}
    context = browser.new_context(color_scheme=scheme, viewport=screen, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(file.as_uri())
    yield page
    context.close()


def assert_accessible(page: Page, *parts: str) -> None:
    """Checks that axe finds no violation, and that no part has to be scrolled sideways."""
    assert Axe().run(page).response["violations"] == []
    for part in parts:
        assert page.locator(part).evaluate("part => part.scrollWidth <= part.clientWidth"), part


def loaded(images: Locator) -> bool:
    """Waits for images, which the page loads as it needs them;
    returns whether there are some and none is broken.
    """
    for image in images.all():
        expect(image).to_have_js_property("complete", True)
    return bool(
        images.evaluate_all(
            "images => images.length > 0 && images.every(image => image.naturalWidth > 0)"
        )
    )
