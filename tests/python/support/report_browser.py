# SPDX-License-Identifier: Apache-2.0
"""A report's page in a headless Chromium, as a reader has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from stepwell._report.page import page_of

CHROMIUM = shutil.which("chromium")  # without it, the one that Playwright has
WIDE, NARROW = {"width": 1300, "height": 900}, {"width": 400, "height": 800}
TIMEOUT_MS = 10_000


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Not for a whole session: while it runs there is an event loop, and other tests run theirs."""
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses root, and the small /dev/shm of a container is too small.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


class Report:
    """An open page. `problems` has what the console said, errors of scripts, and requests other
    than for the page itself; `check` fails if there is any."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self.url = url
        self.page: Page = browser.new_page(**{"viewport": WIDE, **context})
        self.page.set_default_timeout(TIMEOUT_MS)
        self.problems: list[str] = []
        self.page.on("console", lambda said: self.problems.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.goto(url)

    def _asked(self, url: str) -> None:
        origin = self.url.split("?")[0]
        own = url.startswith(origin) if origin.startswith("http:") else url == self.url
        if not own and not url.startswith("data:"):
            self.problems.append(f"request: {url}")

    def check(self) -> None:
        assert self.problems == []

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text().replace("\xa0", " ")

    def facts(self, selector: str) -> dict[str, str]:
        """The names and values of a list of facts."""
        rows: list[list[str]] = self.page.locator(f"{selector} dt").evaluate_all(
            "all => all.map(dt => [dt.innerText, dt.nextElementSibling.innerText])")
        return {name.strip(): value.strip() for name, value in rows}

    def chart(self, label: str) -> Locator:
        return self.page.locator(f'.chart[aria-label="{label}: chosen step"]')

    def chosen(self) -> str:
        """The number of the chosen step, as the bar has it."""
        return self.page.locator("#step-field").input_value()

    def rows(self, label: str) -> list[list[str]]:
        """The cells' texts of the rows of a table that are in the page, from the first one on."""
        found: list[list[str]] = self.page.locator(
            f'[aria-label="{label}"] .rows > .row').evaluate_all(
            "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))")
        return found

    def violations(self) -> list[str]:
        """What axe finds. Its own requests, of which it makes none, would be problems."""
        result = Axe().run(self.page)
        return [f"{found['id']}: {node['html'][:200]} {node['failureSummary']}"
                for found in result.response["violations"] for node in found["nodes"]]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        wider: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return wider


class Opener:
    """Makes pages of documents and opens them; `close` checks each for problems."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self._opened: list[Report] = []

    def __call__(self, document: Mapping[str, Any], **context: Any) -> Report:
        path = self._folder / f"{len(self._opened)}.html"
        path.write_text(page_of(document), encoding="utf-8")
        return self.at(path.as_uri(), **context)

    def at(self, url: str, **context: Any) -> Report:
        report = Report(self._browser, url, **context)
        self._opened.append(report)
        report.page.locator("#message").wait_for(state="hidden")
        return report

    def close(self) -> None:
        for report in self._opened:
            report.check()
            report.page.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(browser, tmp_path)
    yield opener
    opener.close()


@contextmanager
def serving(path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL that `stepwell serve` prints for a store, and the server."""
    server = subprocess.Popen([sys.executable, "-m", "stepwell", "serve", "--", str(path)],
                              stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()
