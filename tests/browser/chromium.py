"""Pages in headless Chromium: Debian's, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tests.lacking import lacking

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_READY_MS = 60_000


def chromium_path() -> str:
    """Return the path of Chromium; skip the test if there is none."""
    named = os.environ.get("OPMETER_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        lacking("no Chromium: apt-get install chromium fonts-noto-cjk, or set OPMETER_CHROMIUM")
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium, and end it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("no playwright: pip install 'playwright>=1.50'")
    path = chromium_path()
    with sync_playwright() as playwright:
        # Tests run as root in containers, where Chromium's sandbox does not start.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Shown:
    """A page in a browser, with all errors that occurred in it."""

    page: Any
    faults: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a page of a report, and wait until it is drawn."""
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=_READY_MS)

    def is_wider_than_window(self) -> bool:
        found: bool = self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return found

    def blank_figures(self) -> list[str]:
        """Return the labels of the plots that show one colour only."""
        blank = []
        for figure in self.page.query_selector_all("figure svg.plot"):
            figure.scroll_into_view_if_needed()
            colours = Image.open(BytesIO(figure.screenshot())).convert("RGB").getcolors(1 << 20)
            if colours is not None and len(colours) < 2:
                blank.append(figure.get_attribute("aria-label") or "?")
        return blank


@contextmanager
def shown(browser: Any, *, width: int = 1440, scheme: str = "light") -> Iterator[Shown]:
    """Yield an empty page of a width in pixels and a colour scheme."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    one = Shown(context.new_page())
    one.page.on("console", lambda message: _note(one, message))
    one.page.on("pageerror", lambda error: one.faults.append(str(error)))
    one.page.on("dialog", lambda dialog: (one.faults.append(dialog.message), dialog.dismiss()))
    one.page.on("request", lambda request: one.addresses.append(request.url))
    try:
        yield one
    finally:
        context.close()


def _note(one: Shown, message: Any) -> None:
    if message.type in ("error", "warning"):
        one.faults.append(message.text)
