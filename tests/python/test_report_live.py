# SPDX-License-Identifier: Apache-2.0
"""The page of `stepwell serve` in a real browser, while a run goes on: what it shows against the
store, and what it asks the server for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

import stepwell
from report_browser import Opener, Report, browser, serving  # noqa: F401  a fixture
from report_documents import HOSTILE

POLLS_MS = 15_000


def state(step: int) -> dict[str, Any]:
    kernel = np.random.default_rng(step).normal(size=(48, 200)).astype(np.float32)
    kernel[0, 0] = np.nan
    return {"params": {"kernel": kernel, "bias": np.arange(300, dtype=np.float32)}, "step": step}


class Run:
    """A store with a few steps, its writer still open, and its page."""

    def __init__(self, store: stepwell.Store, report: Report, server: Any) -> None:
        self.store, self.report, self.server = store, report, server

    def save(self, step: int) -> None:
        self.store.save(step, state(step), metrics={"loss": 1 / (step + 1)}).result()


@pytest.fixture
def run(browser: Browser, tmp_path: Path) -> Iterator[Run]:
    with stepwell.open(tmp_path / "run", statistics=True) as store:
        for step in range(4):
            store.save(step, state(step), metrics={"loss": 1 / (step + 1)}).result()
        with serving(tmp_path / "run") as (url, server):
            opener = Opener(browser, tmp_path)
            yield Run(store, opener.at(url), server)
            opener.close()


def choose(report: Report, name: str) -> None:
    report.page.locator("#search").fill(name)
    report.page.locator('[aria-label="Leaves"] [role="row"]', has_text=name).last.click()
    report.page.locator("#search").fill("")


def test_new_steps_come_and_choices_stay(run: Run) -> None:
    report = run.report
    assert report.chosen() == "3"
    choose(report, "bias")
    run.save(4)
    expect(report.page.locator("#step-field")).to_have_value("4", timeout=POLLS_MS)  # it follows
    report.page.locator("#step-field").fill("1")
    report.page.keyboard.press("Enter")
    report.page.get_by_label("Log scale").first.check()
    report.chart("loss").focus()
    run.save(5)
    expect(report.page.locator("#range")).to_have_text(
        re.compile("^6 of 6 steps shown"), timeout=POLLS_MS)
    assert report.chosen() == "1"
    assert report.text("#leaf-path").startswith("params/bias")
    assert report.page.get_by_label("Log scale").first.is_checked()
    assert report.page.evaluate("document.activeElement.ariaLabel") == "loss: chosen step"
    sort = report.page.get_by_role("grid", name="Leaves that differ").get_by_role(
        "button", name="Size")
    sort.click()
    run.save(6)
    expect(report.page.locator("#range")).to_have_text(
        re.compile("^7 of 7 steps shown"), timeout=POLLS_MS)
    expect(sort).to_be_focused()
    box = report.page.get_by_label("loss", exact=True)
    box.focus()
    run.save(7)
    expect(report.page.locator("#range")).to_have_text(
        re.compile("^8 of 8 steps shown"), timeout=POLLS_MS)
    expect(box).to_be_focused()
    report.page.get_by_label("Follow").check()
    assert report.chosen() == "7"


def test_what_the_page_says_is_what_the_store_says(run: Run) -> None:
    report, store = run.report, run.store
    facts = report.facts("#chosen-facts")
    assert facts["loss"] == "0.25" and facts["Leaves"] == str(len(store[3].tree))
    assert facts["Stored"] == f"{store[3].stored_bytes / 1024:.1f} KiB"
    choose(report, "kernel")
    known = store[3].tree["params/kernel"].statistics
    shown = report.facts("#leaf-at")
    assert known is not None
    assert float(shown["Norm"]) == pytest.approx(known.norm, rel=1e-4)
    assert float(shown["Minimum"]) == pytest.approx(known.min, rel=1e-4)
    assert shown["Not finite"] == "1"


def test_elements_are_read_from_the_store(run: Run) -> None:
    report = run.report
    kernel = state(1)["params"]["kernel"]
    choose(report, "kernel")
    report.page.locator("#step-field").fill("1")
    report.page.keyboard.press("Enter")
    report.page.get_by_role("button", name="Read at step 1").click()
    shown = report.page.locator("#arrays-shown")
    expect(shown).to_contain_text(f"{kernel.size - 1:,} elements in 100 bins, 1 NaN.")
    assert shown.locator("rect.bin").count() == 100
    counts = [int(text.rsplit(": ")[1].replace(",", ""))
              for text in shown.locator("rect.bin title").all_text_contents()]
    assert counts == np.histogram(kernel[np.isfinite(kernel)], 100)[0].tolist()
    heat = shown.locator(".heat")
    heat.focus()
    report.page.keyboard.press("ArrowDown")
    text = shown.locator(".heat + .legend + p").inner_text()
    found = re.fullmatch(r"\[(\d+):(\d+), (\d+):(\d+)\]: mean (\S+), min (\S+), max (\S+)", text)
    assert found is not None, text
    top, end, left, right = map(int, found.groups()[:4])
    block = kernel[top:end, left:right]
    assert [float(each) for each in found.groups()[4:]] == pytest.approx(
        [block.mean(), block.min(), block.max()], rel=1e-4)
    assert report.violations() == []


def test_a_slice_is_read_and_a_bad_one_is_said(run: Run) -> None:
    report = run.report
    choose(report, "kernel")
    field = report.page.get_by_label("Slice")
    field.fill("2, 10:13")
    field.press("Enter")
    expect(report.page.locator("#arrays-said")).to_have_text("Step 3, [2, 10:13].")
    values = [float(row[1]) for row in report.rows("Values")]
    assert values == pytest.approx(state(3)["params"]["kernel"][2, 10:13].tolist())
    assert report.problems == []
    field.fill("nonsense")
    field.press("Enter")
    expect(report.page.locator("#arrays-said")).to_contain_text("nonsense")
    assert all("400" in problem for problem in report.problems)  # the browser's own words
    report.problems.clear()


def test_any_two_steps_are_compared_by_the_server(run: Run) -> None:
    report = run.report
    report.page.locator("#compare-a").select_option(label="1")
    report.page.locator("#compare-b").select_option(label="2")
    expect(report.page.locator("#compare")).to_contain_text("Exact, from the steps' records.")
    changed = run.store.changed(1, 2)
    rows = {row[0]: row[1:] for row in report.rows("Leaves that differ")}
    assert set(rows) == set(changed.changed)
    assert report.text("#compare-said") == f"{len(rows)} changed, {changed.unchanged} unchanged."
    kernel = changed.changed["params/kernel"]
    assert rows["params/kernel"][-2] == f"{kernel.nbytes_changed / 1024:.1f} KiB"


def test_an_item_is_not_taken_for_a_part_of_the_state(run: Run) -> None:
    """The path of one is that of the other in steps that have no item but "state"."""
    report, store = run.report, run.store
    for step in (4, 5):
        store.save(step, {"extra": {"w": np.full(3, float(step))}}).result()
    store.save(6, items={"state": {"extra": {"w": np.full(3, 6.0)}},
                         "extra": {"w": np.full(3, 100.0)}}).result()
    report.page.locator("#compare-b").select_option(label="6", timeout=POLLS_MS)
    report.page.locator("#compare-a").select_option(label="4")
    report.page.locator("#compare-b").select_option(label="5")
    expect(report.page.locator("#compare")).to_contain_text("Exact, from the steps' records.")
    (row,) = report.rows("Leaves that differ")
    assert [float(each) for each in row[2:4]] == pytest.approx([48**0.5, 75**0.5], rel=1e-4)
    report.page.locator("#step-field").fill("5")
    report.page.keyboard.press("Enter")
    report.page.locator("#search").fill("extra/w")
    found = report.page.locator('[aria-label="Leaves"] [role="row"]', has_text="float64[3]")
    for at, said in enumerate(("in an item 'extra'", "Step 5, [0:3].")):
        found.nth(at).click()
        report.page.locator("#read").click()
        expect(report.page.locator("#arrays-said")).to_contain_text(said)
    assert {row[1] for row in report.rows("Values")} == {"5"}
    assert all("404" in problem for problem in report.problems)
    report.problems.clear()


def test_a_server_that_ended_is_said(run: Run) -> None:
    report = run.report
    run.server.kill()
    expect(report.page.locator("#live-state")).to_have_text(
        "The server does not answer. What was read before is shown.", timeout=POLLS_MS)
    assert report.facts("#facts")["Steps"] == "4"
    assert all("ERR_CONNECTION" in problem for problem in report.problems)
    report.problems.clear()


def test_hostile_names_reach_the_store(browser: Browser, tmp_path: Path) -> None:
    names = [*HOSTILE, "a/b", "*", "back\\slash", "a&b=c#d%41+", "\udc80"]
    with stepwell.open(tmp_path / "run") as store:
        store.save(1, {name: np.full(3, i) for i, name in enumerate(names)}, metrics={
            name: 1.0 for name in HOSTILE if "\ud800" not in name}).result()
    opener = Opener(browser, tmp_path)
    with serving(tmp_path / "run") as (url, _):
        report = opener.at(url)
        tree = report.page.locator('[aria-label="Leaves"]')
        assert tree.get_attribute("aria-rowcount") == str(1 + len(names))
        read = set()
        for at in range(len(names)):
            tree.locator(f'[data-i="{at}"]').click()
            report.page.locator("#read").click()
            expect(report.page.locator("#arrays-said")).to_have_text("Step 1, [0:3].")
            rows = report.rows("Values")
            assert len({row[1] for row in rows}) == 1
            read.add(int(rows[0][1]))
        assert read == set(range(len(names)))
        assert report.page.evaluate("window.hit") is None
        opener.close()
