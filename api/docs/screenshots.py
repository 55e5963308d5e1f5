# SPDX-License-Identifier: Apache-2.0
"""Draws the guides' pictures of a report: screenshots.py RUN [FOLDER].

    .venv/bin/python api/docs/screenshots.py build/quickstart/demo/run1

RUN is the store that `api/quickstart` leaves. Needs what tests/requirements.txt has, and Chromium.
The pictures have few colours, so that each takes less than 150 KB.
"""

import argparse
import io
import pathlib
import shutil
import tempfile
from collections.abc import Callable

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import stepwell
from stepwell._report.document import document_of
from stepwell._report.page import page_of

PAGES = pathlib.Path(__file__).resolve().parent / "pages"
LEAF = "params/layers/0/qkv/kernel"


def overview(page: Page) -> None:
    page.evaluate("window.scrollTo(0, 0)")


def leaf(page: Page) -> None:
    page.locator("#search").fill(LEAF)
    page.locator('[aria-label="Leaves"] [role="row"]', has_text="kernel").last.click()
    page.locator("#search").fill("params/**/kernel")
    page.locator("#tree").evaluate("tree => window.scrollTo(0, tree.offsetTop - 56)")


def compare(page: Page) -> None:
    page.locator("#compare").evaluate("compare => window.scrollTo(0, compare.offsetTop - 56)")


PICTURES: dict[str, tuple[Callable[[Page], None], int]] = {
    "report.png": (overview, 620), "report-leaf.png": (leaf, 760),
    "report-compare.png": (compare, 520)}  # what is done before each, and its height


def draw(run: pathlib.Path, folder: pathlib.Path) -> None:
    with stepwell.open(run, mode="r") as store:
        html = page_of(document_of(store))
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        path = pathlib.Path(temporary, "report.html")
        path.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(path.as_uri())
        page.locator("#message").wait_for(state="hidden")
        # The guides are read anywhere: no path of the machine that drew them.
        page.locator("#where").evaluate("where => { where.firstChild.textContent = '/runs/run1'; }")
        for name, (prepare, height) in PICTURES.items():
            page.set_viewport_size({"width": 1200, "height": height})
            prepare(page)
            page.mouse.move(0, 0)
            page.wait_for_timeout(300)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            shot.quantize(128, dither=Image.Dither.NONE).save(folder / name, optimize=True)
            print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("run", type=pathlib.Path, help="the store's directory")
    parser.add_argument("folder", type=pathlib.Path, nargs="?", default=PAGES)
    options = parser.parse_args()
    draw(options.run, options.folder)


if __name__ == "__main__":
    main()
