# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a real browser: what it shows of a document, and what a reader does.

Each page is checked at its end: no word on the console, no request but for the page itself."""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import stepwell._report.page
from report_browser import NARROW, Opener, Report, browser, show  # noqa: F401  fixtures
from report_documents import document
from stepwell._report.page import page_of


def status(report: Report) -> str:
    return report.text("#range")


# ---- what is shown -------------------------------------------------------------------------------


def test_the_head_says_what_run_it_is(show: Opener) -> None:
    report = show(document())
    assert report.page.title() == "one · Stepwell"
    assert report.text("#name") == "one"
    assert "/runs/one" in report.text("#where")
    assert "2026-11-29 15:20:38 UTC" in report.text("#where")
    facts = report.facts("#facts")
    assert (facts["Steps"], facts["Newest"], facts["Leaves"]) == ("60", "59", "9")
    assert facts["Whole store"] == "9.0 MiB"
    assert facts["Best loss"].startswith("0.05234") and facts["Best loss"].endswith("at 59")
    assert facts["Damage"] == "1"


def test_the_chosen_step_is_shown_as_the_document_has_it(show: Opener) -> None:
    given = document()
    report = show(given)
    report.page.locator("#step-field").fill("7")
    report.page.keyboard.press("Enter")
    facts = report.facts("#chosen-facts")
    assert facts["Step"] == "7"
    assert facts["Saved"] == "2026-11-29 15:33:47 UTC"
    assert facts["loss"] == f"{given['metrics']['loss'][7]:.5g}"
    assert facts["Stored"] == "1.9 MiB" and facts["Save took"] == "10.7 ms"
    assert facts["Marks"] == "tainted" and facts["Tainted"] == "loss spike"
    assert facts["Verified"] == "not yet" and facts["Kept by"] == "LatestN(60)"


def test_marks_have_a_word_a_shape_and_a_lane(show: Opener) -> None:
    report = show(document())
    said = report.page.locator(".lanes svg").get_attribute("aria-label")
    assert said == ("60 steps shown; best: 59; pinned: 5; tainted: 7; damaged: 9; goes next: 2")
    for kind in ("best", "pinned", "tainted", "damaged", "next"):
        assert report.page.locator(f".lanes .mark.{kind}").count() == 1
    shapes = report.page.locator(".lanes .mark").evaluate_all(
        "all => new Set(all.map(each => each.getAttribute('d'))).size")
    assert shapes == 5


def test_gaps_are_drawn_where_steps_are_not_there(show: Opener) -> None:
    steps = [*range(0, 10), *range(30, 40)]
    report = show(document(steps=steps, retention={"gaps": [[9, 30]]}))
    assert "1 gap where steps are not there" in status(report)
    box = report.page.locator(".lanes .gap").bounding_box()
    whole = report.page.locator(".lanes svg").bounding_box()
    assert box is not None and whole is not None
    assert box["width"] > 0.4 * whole["width"]


def test_values_that_are_no_numbers_are_said_and_not_drawn(show: Opener) -> None:
    values = [1.0, "NaN", 0.5, None, "Infinity", 0.25]
    report = show(document(steps=range(6), metrics={"loss": values}))
    assert report.text("#timeline .figure .note") == (
        "Not drawn as numbers, marked at the top: 1 × NaN, 1 × Infinity.")
    chart = report.chart("loss")
    assert chart.locator(".odd").count() == 2 and chart.locator("circle").count() == 3
    for number, words in ((1, "NaN"), (3, "not known"), (4, "Infinity"), (5, "0.25")):
        report.page.locator("#step-field").fill(str(number))
        report.page.keyboard.press("Enter")
        assert chart.get_attribute("aria-valuetext") == f"step {number}: loss {words}"


def test_what_is_not_known_is_said(show: Opener) -> None:
    given = document(space={"total_bytes": None})
    given["steps"].update(save_s=[None] * 60, frees_bytes=[None] * 60)
    report = show(given)
    assert "is not known" in report.text("#speed-said")
    assert not report.page.locator("#speed .chart").first.is_visible()
    assert "What deleting a step frees is not known here." in report.text("#space")
    assert "The space of the whole store is not known." in report.text("#space")
    assert report.facts("#chosen-facts")["Save took"] == "–\nnot known"


def test_space_speed_health_and_limits(show: Opener) -> None:
    given = document(limits=["4 of 9 leaves were left out."])
    report = show(given)
    facts = report.facts("#space-store")
    assert facts["Live"] == "6.0 MiB" and facts["Dead"] == "1.0 MiB" and "Index" not in facts
    assert report.rows("Items") == [["state", "2.9 MiB", "1.9 MiB", "1.5 MiB"]]
    rate = statistics.median(owned / seconds for owned, seconds in zip(
        given["steps"]["owned_bytes"], given["steps"]["save_s"], strict=True)) / (1 << 20)
    assert report.text("#speed-said") == (
        f"Median 12.9 ms, longest 15.9 ms; median {rate:.1f} MiB/s.")
    assert report.text("#verdict") == "Damage is known: 1 damaged step."
    assert "Step 9: a bad chunk" in report.text("#health")
    assert "4 of 9 leaves were left out." in report.text("#limits")


# ---- choosing and zooming ------------------------------------------------------------------------


def test_arrow_keys_choose_a_step(show: Opener) -> None:
    report = show(document())
    chart = report.chart("loss")
    chart.focus()
    for key, wanted in (("ArrowLeft", "58"), ("PageDown", "48"), ("Home", "0"), ("ArrowLeft", "0"),
                        ("ArrowRight", "1"), ("End", "59")):
        report.page.keyboard.press(key)
        assert report.chosen() == wanted, key
        assert chart.get_attribute("aria-valuenow") == wanted


def test_a_click_on_a_chart_chooses_the_nearest_step(show: Opener) -> None:
    report = show(document())
    chart = report.chart("loss")
    ticks = chart.locator(".axis.x .tick").evaluate_all(
        "all => all.map(each => [each.textContent, each.getBoundingClientRect().x"
        " + each.getBoundingClientRect().width / 2])")
    text, x = ticks[2]
    box = chart.bounding_box()
    assert box is not None
    report.page.mouse.click(x + 2, box["y"] + 50)
    assert report.chosen() == text


def test_a_click_on_the_lanes_chooses_a_step(show: Opener) -> None:
    report = show(document())
    report.page.locator(".lanes .mark.tainted").click()
    assert report.chosen() == "7"


def test_zoom_by_buttons_keys_and_drag(show: Opener) -> None:
    report = show(document())
    assert status(report).startswith("60 of 60 steps shown · 0 to 59")
    report.page.get_by_label("Zoom in (+)").click()
    assert status(report).startswith("30 of 60 steps shown · 30 to 59")
    report.page.get_by_label("Earlier steps").click()
    assert "to 59" not in status(report)
    report.page.get_by_role("button", name="Show all steps (0)").click()
    assert status(report).startswith("60 of 60")
    chart = report.chart("loss")
    box = chart.bounding_box()
    assert box is not None
    report.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 40)
    report.page.mouse.down()
    report.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 40, steps=4)
    report.page.mouse.up()
    seen = int(status(report).split(" ")[0])
    assert 15 <= seen <= 22, status(report)
    chart.focus()
    report.page.keyboard.press("0")
    assert status(report).startswith("60 of 60")
    report.page.keyboard.press("+")
    assert not status(report).startswith("60 of 60")
    report.page.keyboard.press("Home")  # a chosen step is brought into sight
    assert "· 0 to" in status(report)


def test_a_log_scale_says_which_values_it_cannot_have(show: Opener) -> None:
    report = show(document(steps=range(5), metrics={"loss": [100.0, 1.0, 0.0, -1.0, 0.01]}))
    line = report.chart("loss").locator("path.line")
    straight = line.get_attribute("d")
    report.page.locator("#timeline").get_by_label("Log scale").check()
    assert line.get_attribute("d") != straight
    assert report.text("#timeline .note") == "2 values of 0 or less not drawn on a log scale."
    # Equal ratios are equal distances.
    circles = report.chart("loss").locator("circle")
    ys = circles.evaluate_all("all => all.map(c => +c.cy.baseVal.value)")
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], rel=1e-6)


def test_steps_over_time(show: Opener) -> None:
    given = document(steps=range(4))
    given["steps"]["time_s"] = [1_795_966_200.0 + at for at in (0, 10, 20, 300)]
    report = show(given)
    circles = report.chart("loss").locator("circle")
    read = "all => all.map(c => +c.cx.baseVal.value)"
    xs = circles.evaluate_all(read)
    assert xs[1] - xs[0] == pytest.approx(xs[3] - xs[2])
    report.page.locator("#timeline").get_by_text("Time", exact=True).click()
    xs = circles.evaluate_all(read)
    assert xs[3] - xs[2] == pytest.approx(28 * (xs[1] - xs[0]))


def test_metrics_are_chosen(show: Opener) -> None:
    report = show(document(metrics={name: [1.0] * 60 for name in "abcde"}))
    assert report.page.locator("#timeline .chart").count() == 3
    report.page.get_by_label("e", exact=True).check()
    report.page.get_by_label("a", exact=True).uncheck()
    labels = report.page.locator("#timeline .chart").evaluate_all(
        "all => all.map(each => each.getAttribute('aria-label')[0])")
    assert labels == ["b", "c", "e"]


def test_the_table_of_steps_sorts_and_chooses(show: Opener) -> None:
    given = document()
    report = show(given)
    report.page.get_by_text("Steps as a table").click()
    assert [row[0] for row in report.rows("Steps")][:3] == ["59", "58", "57"]
    table = report.page.get_by_role("grid", name="Steps")
    table.get_by_role("button", name="loss").click()
    assert table.locator('[data-key="metric-0"][aria-sort="descending"]').count() == 1
    assert [row[0] for row in report.rows("Steps")][:3] == ["0", "1", "2"]
    table.focus()
    report.page.keyboard.press("ArrowDown")
    report.page.keyboard.press("Enter")
    assert report.chosen() == "1"
    assert table.locator('[aria-selected="true"]').inner_text().startswith("1\n")


# ---- the page itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_axe_finds_nothing(show: Opener, scheme: str, width: str) -> None:
    context = {"color_scheme": scheme, **({"viewport": NARROW} if width == "narrow" else {})}
    report = show(document(), **context)
    report.page.get_by_text("Steps as a table").click()
    assert report.violations() == []


def test_nothing_is_wider_than_a_phone(show: Opener) -> None:
    report = show(document(metrics={"m" * 300: [1.0] * 60, "loss": [0.5] * 60}), viewport=NARROW)
    report.page.get_by_text("Steps as a table").click()
    assert report.overflow() == 0


def test_everything_is_reached_by_tab(show: Opener) -> None:
    report = show(document())
    wanted = report.page.evaluate("""() => [...document.querySelectorAll(
        'a, button, input, select, summary, [tabindex="0"]')].filter(each => !each.disabled
        && each.getClientRects().length && (each.type !== 'radio' || each.checked)).length""")
    seen, bare = set(), []
    for _ in range(wanted + 20):
        report.page.keyboard.press("Tab")
        found = report.page.evaluate("""() => {
            const at = document.activeElement;
            if (at === document.body) return null;
            const shown = at.type === 'radio' ? at.nextElementSibling : at;
            const style = getComputedStyle(shown);
            at.dataset.seen ||= String(Math.random());
            return [at.dataset.seen, style.outlineStyle, at.outerHTML]; }""")
        if found is None:
            continue
        seen.add(found[0])
        if found[1] == "none":
            bare.append(found[2][:100])
    assert len(seen) == wanted and not bare


def test_no_script_but_the_pages_own_runs(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    html = page_of(document())
    path.write_text(html.replace("</main>", "</main><script>window.hit = 1</script>"
                                 "<img src='data:,' onerror='window.hit = 2'>"), encoding="utf-8")
    report = Report(browser, path.as_uri())
    report.page.locator("#message").wait_for(state="hidden")
    report.page.evaluate("fetch('https://stepwell.invalid/').catch(() => 0)")
    assert report.page.evaluate("window.hit") is None
    assert sum("Content Security Policy" in problem for problem in report.problems) >= 3
    report.page.close()


def test_a_page_that_was_cut_short_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    before, after = page_of(document()).split('id="document">', 1)
    path.write_text(f'{before}id="document">{after[:400]}{after[after.index("</script>"):]}',
                    encoding="utf-8")
    report = Report(browser, path.as_uri())
    expect(report.page.locator("#message")).to_contain_text("cannot be read")
    report.page.close()


def test_a_newer_document_is_refused(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of({**document(), "schema": 2}), encoding="utf-8")
    report = Report(browser, path.as_uri())
    expect(report.page.locator("#message")).to_have_text(
        "The document has schema 2; this page shows schema 1.")
    report.page.close()


def test_the_same_document_is_the_same_page() -> None:
    assert page_of(document()) == page_of(document())
    with pytest.raises(ValueError, match="JSON"):
        page_of(document(metrics={"loss": [float("nan")] * 60}))


def test_what_is_vendored_is_what_its_readme_says() -> None:
    vendor = Path(stepwell._report.page.__file__).resolve().parent / "vendor"
    digest = hashlib.sha256((vendor / "d3.v5.min.js").read_bytes()).hexdigest()
    assert digest in (vendor / "README.md").read_text()
    assert "v5.16.0" in (vendor / "d3.v5.min.js").read_text()[:200]
