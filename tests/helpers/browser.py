"""A real browser, and pages that must not go wrong in it."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Dialog, Error, Locator, Page, expect, sync_playwright

from tests.helpers.processes import PATIENCE, wait_until

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
"""Programs with the engine of Chromium, the fastest first: the shell draws no window around a page,
which takes the others as long as the page.
"""
Scheme = Literal["light", "dark"]
SCREENS = [(1280, "light"), (390, "dark")]
"""Widths and colour schemes of pages: a desktop, and a phone at night."""


class Tab:
    """A tab of Chromium, in which tests open their pages one after the other.

    It takes twice as long to open a page in a new tab, and three times as long in a new context.
    """

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.page = browser.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self._devtools = self.page.context.new_cdp_session(self.page)
        self._wrong = list[str]()
        self.page.on("console", lambda message: self._wrong.append(message.text))
        self.page.on("pageerror", lambda error: self._wrong.append(str(error)))
        self.page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Dialog) -> None:
        self._wrong.append("a dialog was opened")
        dialog.dismiss()  # no other page would open

    def _forget_history(self) -> bool:
        """Empties the history; returns False in the moment in which Chromium exchanges pages."""
        try:
            self._devtools.send("Page.resetNavigationHistory")
        except Error as error:
            if "Not attached to an active page" not in str(error):
                raise
            return False
        return True

    def open(
        self, address: str, width: int = 1280, scheme: Scheme = "light"
    ) -> tuple[Page, list[str]]:
        """Opens a page in a window of some width and colour scheme; returns it, and a list of all
        that goes wrong in it or that it logs until the next page is opened.
        """
        # Nothing is left of the page before.
        self.page.goto("about:blank")
        wait_until(self._forget_history)
        self._wrong = []

        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme=scheme)
        self.page.goto(address)
        return self.page, self._wrong


@contextmanager
def running(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Marks an event loop as the one that runs, or none.

    Playwright marks its own as long as a browser is open: no test could run another.
    """
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    yield
    asyncio._set_running_loop(before)


@contextmanager
def chromium(*args: str) -> Iterator[Browser]:
    """Starts Chromium, or skips the test where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no browser is here: install chromium")
    expect.set_options(timeout=1000 * PATIENCE)  # its default of 5 s is short on a busy machine
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", *args], timeout=1000 * PATIENCE
        )
        yield browser
        browser.close()


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
