"""Pages in headless Chromium."""

import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: in containers tests run as root. Nothing is fetched.
TIMEOUT = 120_000  # ms, for a busy machine
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@contextmanager
def chromium():
    """A browser of playwright's; skips the test where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium: on Debian, apt install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS], timeout=TIMEOUT)
        try:
            yield browser
        finally:
            browser.close()


# What Chromium says of speed where it draws WebGL without a GPU.
SLOW = ("GL Driver Message", "willReadFrequently", "software WebGL")


@contextmanager
def opened(browser, path, width=1280, **options):
    """A page from a file; afterwards fails if it wrote an error or asked for anything else."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.set_default_timeout(TIMEOUT)
    faults = []

    def hear(said):
        slow = said.type == "warning" and any(words in said.text for words in SLOW)
        if said.type in ("error", "warning") and not slow:
            faults.append(said.text)

    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", hear)
    page.on("request", lambda x: None if x.url == path.as_uri() else faults.append(x.url))
    page.goto(path.as_uri())
    try:
        yield page
    finally:
        page.close()
    assert faults == []


def overflow(page):
    """How many pixels the page is wider than the window, and what is cut off within."""
    return page.evaluate(
        """() => [
          document.documentElement.scrollWidth - document.documentElement.clientWidth,
          [...document.querySelectorAll("body *")]
            .filter((x) => x.offsetParent && x.scrollWidth > x.clientWidth + 1 &&
              !["visible", ""].includes(getComputedStyle(x).overflowX))
            .map((x) => `${x.tagName} ${x.className} ${x.textContent.slice(0, 40)}`),
        ]"""
    )
