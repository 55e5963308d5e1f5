# SPDX-License-Identifier: Apache-2.0
"""The leaves on a report's page: tree, search, one leaf, two steps compared; odd documents."""

from __future__ import annotations

from typing import Any

import pytest

from report_browser import NARROW, Opener, Report, browser, show  # noqa: F401  fixtures
from report_documents import HOSTILE, document

GLOBS = {"params/**/kernel": 4, "**/bias": 4, "params/layers/?": 8, "*": 9, "opt": 1,
         "params/*/0/*": 2, "layers/**": 0, "PARAMS/**": 0}


def names(report: Report) -> list[str]:
    """The names in the tree, without the signs before them."""
    return [row[0].lstrip("▾▸").strip() for row in report.rows("Leaves")]


def number(text: str) -> float:
    return float(text.replace(",", "").replace("+", "").replace(" %", ""))


# ---- the tree ------------------------------------------------------------------------------------


def test_the_tree_has_sizes_and_types(show: Opener) -> None:
    given = document()
    report = show(given)
    rows = {row[0].lstrip("▾▸").strip(): row for row in report.rows("Leaves")}
    assert list(rows) == ["params", "layers", "0", "bias", "kernel", "1", "2", "3", "opt", "count"]
    sizes = given["leaves"]["logical_bytes"]
    assert rows["params"][1:3] == ["8 leaves", f"{sum(sizes[:8]) / 1024:.1f} KiB"]
    assert rows["count"][1:] == ["float32[64, 32]", "8.0 KiB", "4.0 KiB", ""]
    assert rows["kernel"][4] == "(data, model)"
    assert report.text("#found") == f"9 leaves, {sum(sizes) / 1024:.1f} KiB."


@pytest.mark.parametrize(("query", "found"), [*GLOBS.items(), ("KERN", 4), ("layers/2", 2),
                                              ("nothing", 0), ("", 9)])
def test_the_search_finds_text_and_globs(show: Opener, query: str, found: int) -> None:
    report = show(document())
    report.page.locator("#search").fill(query)
    of = " of 9" if query else ""
    assert report.text("#found").startswith(f"{found}{of} leaves, ")
    leaves = [row for row in report.rows("Leaves") if row[1].startswith("float32")]
    assert len(leaves) == found


def test_globs_take_what_load_takes(show: Opener, store: Any) -> None:
    given = document()
    tree: dict[str, Any] = {}
    for path in given["leaves"]["path"]:
        *above, last = path.split("/")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = 1
    store.save(1, tree).result()
    for query, found in GLOBS.items():
        try:
            taken = len(store.load(1, query))
        except Exception as error:
            assert "PathNotFound" in type(error).__name__
            taken = 0
        assert taken == found, query


def test_the_tree_by_keys(show: Opener) -> None:
    report = show(document())
    tree = report.page.get_by_role("treegrid", name="Leaves")
    tree.focus()
    press = report.page.keyboard.press
    press("Home")
    press("ArrowLeft")
    assert names(report) == ["params", "opt", "count"]
    for _ in range(3):  # opens, goes in, opens nothing that is open
        press("ArrowRight")
    press("End")
    press("Enter")
    assert report.text("#leaf-path").startswith("opt/count")
    active = tree.get_attribute("aria-activedescendant")
    assert report.page.locator(f"#{active}").inner_text().startswith("count")
    press("ArrowLeft")  # to the node above
    press("ArrowLeft")  # and closes it
    assert names(report)[-1] == "opt"


def test_expand_and_collapse(show: Opener) -> None:
    report = show(document())
    report.page.get_by_role("button", name="Collapse all").click()
    assert names(report) == ["params", "opt"]
    report.page.get_by_role("button", name="Expand all").click()
    assert len(names(report)) == 16
    report.page.locator(".twisty").first.click()
    assert names(report) == ["params", "opt", "count"]


def test_of_50000_leaves_few_are_in_the_page(show: Opener) -> None:
    paths = [f"params/{i // 100}/w{i}" for i in range(50_000)]
    report = show(document(leaves=paths, sampled=2))
    report.page.get_by_role("button", name="Expand all").click()
    assert report.page.locator("*").count() < 3000
    tree = report.page.get_by_role("treegrid", name="Leaves")
    assert tree.get_attribute("aria-rowcount") == str(1 + 1 + 500 + 50_000)
    tree.focus()
    report.page.keyboard.press("End")
    assert names(report)[-1] == "w49999"
    report.page.keyboard.press("Enter")
    assert report.text("#leaf-path").startswith("params/499/w49999")
    report.page.locator("#search").fill("params/7/w70?")
    assert names(report) == ["params", "7", *(f"w70{i}" for i in range(10))]
    assert report.page.locator("*").count() < 3000


# ---- a leaf --------------------------------------------------------------------------------------


def test_a_leaf_has_its_statistics(show: Opener) -> None:
    given = document()
    report = show(given)
    report.page.locator('[role="row"]', has_text="count").first.click()
    at = given["leaves"]["path"].index("opt/count")
    statistics = given["leaves"]["statistics"]
    assert report.facts("#leaf-facts")["Type"] == "float32[64, 32]"
    for step in given["leaves"]["steps"][3:5]:
        sample = given["leaves"]["steps"].index(step)
        report.page.locator("#step-field").fill(str(step))
        report.page.keyboard.press("Enter")
        shown = report.facts("#leaf-at")
        assert number(shown["Norm"]) == pytest.approx(statistics["norm"][at][sample], rel=1e-4)
        assert number(shown["Minimum"]) == statistics["min"][at][sample]
        assert number(shown["Maximum"]) == statistics["max"][at][sample]
        assert number(shown["Changed"]) == 100 * statistics["changed"][at][sample]
        words = report.chart("Norm").get_attribute("aria-valuetext")
        assert words is not None and words.startswith(f"step {step}: norm {shown['Norm']}")
    report.page.locator("#step-field").fill(str(step + 1))
    report.page.keyboard.press("Enter")
    assert report.text("#leaf-at h4") == f"At step {step}, the sampled step nearest before"


def test_a_leaf_that_changed_its_shape(show: Opener) -> None:
    """The document has the type and sizes at the newest sampled step with the leaf alone."""
    given = document(steps=range(0, 30, 10), leaves=["w"], sampled=3)
    given["leaves"]["content"][0][2] = None
    report = show(given)
    assert "Type, sizes and sharding are those at step 10." in report.text("#leaf")


def test_a_leaf_that_is_not_in_a_step(show: Opener) -> None:
    given = document()
    given["leaves"]["content"][0][-1] = None
    report = show(given)
    report.page.locator("#search").fill("params/layers/0/bias")
    report.page.locator('[role="row"]', has_text="bias").first.click()
    assert "The leaf is not in this step." in report.text("#leaf-at")
    assert "It is in 11 of 12 sampled steps." in report.text("#leaf")


def test_a_sharding_is_drawn_on_its_mesh(show: Opener) -> None:
    report = show(document())
    report.page.locator('[role="row"]', has_text="kernel").first.click()
    mesh = report.page.locator("svg.mesh")
    assert mesh.locator("rect").count() == 8
    titles = mesh.locator("title").all_text_contents()
    assert titles[0] == "device 0: slice 0, [0:16, 0:16]"
    assert titles[7] == "device 7: slice 7, [48:64, 16:32]"
    given = document()
    given["shardings"][0]["spec"] = [[], ["model"]]
    report = show(given)
    report.page.locator('[role="row"]', has_text="kernel").first.click()
    assert "8 devices, 2 slices; equal numbers hold the same slice." in report.text("#leaf")
    titles = report.page.locator("svg.mesh title").all_text_contents()
    assert titles[7] == "device 7: slice 1, [0:64, 16:32]"


# ---- two steps -----------------------------------------------------------------------------------


def compared(report: Report) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in report.rows("Leaves that differ")}


def test_two_steps_are_compared_largest_first(show: Opener) -> None:
    given = document()
    report = show(given)
    assert report.text("#compare-said") == "6 changed, 3 unchanged."
    rows = report.rows("Leaves that differ")
    relative = [number(row[5]) for row in rows]
    assert relative == sorted(relative, reverse=True)
    norms = given["leaves"]["statistics"]["norm"]
    for path, values in compared(report).items():
        a, *_, b = norms[given["leaves"]["path"].index(path)]
        assert values[0] == "changed"
        assert number(values[1]) == pytest.approx(a, rel=1e-4)
        assert number(values[2]) == pytest.approx(b, rel=1e-4)
        assert number(values[3]) == pytest.approx(b - a, rel=1e-3)
        assert number(values[4]) == pytest.approx(100 * (b - a) / a, rel=1e-2)
    report.page.get_by_label("Unchanged leaves, too").check()
    assert [values[0] for values in compared(report).values()].count("unchanged") == 3


def test_other_steps_and_other_orders(show: Opener) -> None:
    given = document()
    for sample in range(6, 12):
        given["leaves"]["content"][1][sample] = None  # removed
    for sample in range(6):
        given["leaves"]["content"][2][sample] = None  # added
    given["leaves"]["content"][3][11] = -1  # not known, and its norm is the same
    report = show(given)
    assert report.text("#compare-said") == (
        "4 changed, 1 added, 1 removed, 2 unchanged, 1 not known.")
    report.page.get_by_role("button", name="Swap").click()
    assert compared(report)["params/layers/0/kernel"][0] == "added"
    steps = given["leaves"]["steps"]
    report.page.locator("#compare-a").select_option(label=str(steps[6]))
    report.page.locator("#compare-b").select_option(label=str(steps[7]))
    assert report.text("#compare-said") == "5 changed, 3 unchanged."
    table = report.page.get_by_role("grid", name="Leaves that differ")
    table.get_by_role("button", name="Leaf").click()
    assert list(compared(report)) == sorted(compared(report))
    table.get_by_role("button", name="Leaf").click()
    assert list(compared(report)) == sorted(compared(report), reverse=True)
    table.focus()
    report.page.keyboard.press("Enter")
    assert report.text("#leaf-path").startswith(max(compared(report)))


# ---- odd documents -------------------------------------------------------------------------------


@pytest.mark.parametrize("viewport", [None, NARROW])
def test_hostile_names_are_text(show: Opener, viewport: dict[str, int] | None) -> None:
    given = document(leaves=[name.replace("/", "\\/") for name in HOSTILE], store={
        "name": HOSTILE[0], "path": HOSTILE[2] + HOSTILE[5]},
        metrics={name: [1.0] * 60 for name in HOSTILE}, limits=list(HOSTILE))
    given["steps"]["taint"] = {"59": HOSTILE[1] + HOSTILE[2]}
    given["health"].update(losses=list(HOSTILE), notes=list(HOSTILE))
    given["retention"].update(rules=[HOSTILE[1]], warnings=list(HOSTILE))
    given["shardings"][0].update(text=HOSTILE[0], axes=[HOSTILE[1], HOSTILE[2]], mesh={
        HOSTILE[1]: 2, HOSTILE[2]: 2}, spec=[[HOSTILE[1]]])
    report = show(given, **({"viewport": viewport} if viewport else {}))
    shown = names(report)
    assert shown[0] == HOSTILE[0] and shown[1] == HOSTILE[1]
    assert shown[2] == "\\u202egnp.evil" and shown[3] == HOSTILE[3]
    assert shown[4] == "bell\\x07\\x1b[31m\\x00end" and shown[6:10] == [
        HOSTILE[6], "\\x20", "__proto__", "{policy}"]
    assert shown[10] == "\\ud800alone" and len(shown[5]) <= 160
    assert all("\u202e" not in text and "\x1b" not in text for text in (
        report.page.locator("body").inner_text(), report.page.title()))
    for at in range(len(HOSTILE)):
        report.page.locator(f'[aria-label="Leaves"] [data-i="{at}"]').click()
        if at == 5:
            whole = report.page.get_by_label("The leaf's whole path")
            assert whole.input_value() == HOSTILE[5]
    assert report.page.evaluate("window.hit") is None
    assert report.page.locator("main b, main i, main img").count() == 0
    assert report.overflow() == 0
    assert report.violations() == []


def test_a_store_without_a_step(show: Opener) -> None:
    report = show(document(steps=[], leaves=[], metrics={}))
    assert report.facts("#facts")["Newest"] == "none"
    assert "This store has no step yet." in report.text("#timeline")
    assert report.text("#compare-said") == "There is no step to compare."
    assert report.text("#speed-said") == "This store has no step yet."
    assert report.violations() == []


def test_a_store_with_one_step(show: Opener) -> None:
    report = show(document(steps=[7]))
    assert report.chosen() == "7"
    assert report.text("#compare-said").startswith("There is one step alone")
    report.chart("loss").focus()
    for key in ("ArrowRight", "ArrowLeft", "+", "-", "0", "Home"):
        report.page.keyboard.press(key)
    assert report.chosen() == "7"
    assert report.chart("loss").locator("circle").count() == 1


def test_numbers_of_steps_that_javascript_lacks(show: Opener) -> None:
    largest = str(2**63 - 1)
    given = document(steps=range(3))
    given["steps"]["number"] = [0, 1, largest]
    given["store"]["latest"] = largest
    given["health"]["last_verified"] = largest
    report = show(given)
    assert report.chosen() == largest and report.facts("#facts")["Newest"] == largest
    assert report.facts("#health")["Last verified"] == f"step {largest}"
    report.page.get_by_role("button", name="Step before").click()
    assert report.chosen() == "1"


def test_a_step_is_chosen_by_its_whole_number(show: Opener) -> None:
    """The two largest are the same number in JavaScript."""
    largest = [str(2**63 - 2), str(2**63 - 1)]
    given = document(steps=range(3))
    given["steps"]["number"] = [0, *largest]
    report = show(given)
    for number, chosen in ((largest[0], largest[0]), (largest[1], largest[1]), (" 0 ", "0"),
                           ("7", "0"), (largest[1], largest[1]), ("x", largest[1])):
        report.page.locator("#step-field").fill(number)
        report.page.keyboard.press("Enter")
        assert report.chosen() == chosen


def test_an_empty_name_is_seen(show: Opener) -> None:
    report = show(document(metrics={"": [1.0] * 60}))
    assert report.page.locator("#timeline .toggle", has_text="(empty)").count() == 1
    assert report.facts("#chosen-facts")["(empty)"] == "1"


def test_4000_steps(show: Opener) -> None:
    report = show(document(
        steps=range(0, 40_000, 10)))
    assert report.page.locator("*").count() < 4000
    report.page.get_by_text("Steps as a table").click()
    assert report.page.locator("*").count() < 4000
    report.chart("loss").focus()
    report.page.keyboard.press("Home")
    for _ in range(20):
        report.page.keyboard.press("ArrowRight")
    assert report.chosen() == "200"
