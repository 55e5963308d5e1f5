# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of stores, steps, histories and changes, and what histories plot."""

from __future__ import annotations

import math
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import nbformat
import numpy as np
import pytest

import notebooks
import stepwell
from html_tables import Table
from stepwell._charts import means, scaled, sparkline_svg
from stepwell._display import format_bytes
from stepwell._over_time import numbers_over_time

EVIL = "<script>alert(1)</script>\u202e\x1b[31m&\"'"
SHOWN = "<script>alert(1)</script>\\u202e\\x1b[31m&\"'"


def overview(cells: list[str]) -> dict[str, str]:
    """The rows of a store's first table, which ends where that of its steps begins."""
    assert cells[0].startswith("<stepwell store ") and cells[1:3] == ["", ""]
    end = cells.index("committed") - 2
    return dict(zip(cells[3:end:2], cells[4:end:2], strict=True))


def test_a_store_shows_an_overview(store):
    for step in range(0, 60, 3):
        store.save(step, {"x": np.arange(step + 1)}, metrics={
            "loss": 1 / (1 + step), EVIL: step, "odd": math.nan if step == 9 else step,
            "name": "text", "on": True}).result()
    store.pin(3, 6)
    store.taint(57, EVIL)
    parsed = Table(store._repr_html_())
    shown = overview(parsed.cells)
    assert shown["steps"] == "20, from 0 to 57"
    assert shown["newest"] == (f"step 54, {store[54].time:%Y-%m-%d %H:%M:%S} UTC, "
                               f"{format_bytes(store[54].nbytes)}")
    assert shown["pinned"] == "3, 6" and shown["tainted"] == f"57 ({SHOWN})"
    space = store.stats()["space"]
    assert shown["space"] == (
        f"{format_bytes(space['total_bytes'])}, of which {format_bytes(space['live_bytes'])} live "
        f"and {format_bytes(space['dead_bytes'])} dead")
    assert shown["loss"] == f" {1 / 58:.6g}, from {1 / 58:.6g} to 1"
    assert shown[SHOWN] == " 57, from 0 to 57"
    assert parsed.titles[0] == f"loss: {1 / 58:.6g}, from {1 / 58:.6g} to 1"
    assert [len(lines) for lines in parsed.lines] == [1, 1, 2]  # a gap in the last
    loss = parsed.lines[0][0]
    assert len(loss) == 20 and loss[0] == (2, 2) and loss[-1] == (158, 22)
    assert "<script" not in store._repr_html_() and "\u202e" not in store._repr_html_()


def test_stores_without_steps_and_with_very_many(path):
    with stepwell.open(path) as store:
        assert overview(Table(store._repr_html_()).cells)["steps"] == "0 steps"
        for step in range(500):
            store.save(step, {"x": step}, metrics={f"{'n' * 5000}{i}": step for i in range(15)})
        store.wait()
        store.pin(range(100, 200))
        parsed = Table(store._repr_html_())
        shown = overview(parsed.cells)
        assert shown["pinned"] == "192, 193, 194, 195, 196, 197, 198, 199, and 92 lower"
        assert len(parsed.lines) == 12 and parsed.lines[0][0][-1] == (158, 2)
        assert max(map(len, parsed.lines[0])) == 160
        assert "… and 3 metrics" in parsed.cells and "… 460 more" in parsed.cells
        assert max(map(len, parsed.cells)) <= 301
        assert len(store._repr_html_()) < 100_000


def test_what_cannot_be_read_says_so(path):
    with stepwell.open(path) as store:
        for step in range(3):
            store.save(step, {"x": np.arange(1000), "y": {"z": 1}}).result()
        view = store[1]
        below = store[1]["y"]
    assert Table(view._repr_html_()).cells == [f"step 1: {str(path)!r} is closed"]
    assert repr(view) == f"<step 1: {str(path)!r} is closed>"
    assert repr(below) == f"<a part of step 1: {str(path)!r} is closed>"
    assert Table(store._repr_html_()).cells == [f"<stepwell store {str(path)!r}, closed>"]
    with stepwell.open(path, mode="r") as reader:
        segment = next((path / "segments").iterdir())
        segment.write_bytes(b"x" * segment.stat().st_size)
        (text,) = Table(reader._repr_html_()).cells
        assert text.startswith(f"<stepwell store {str(path)!r}, read-only>: CorruptionError: ")
    with stepwell.open(path, mode="r") as reader:
        problems = reader.stats()["recovery"]["problems"]
        cells = Table(reader._repr_html_()).cells
        assert [cells[i + 1] for i, cell in enumerate(cells) if cell == "problem"] == problems != []


def test_long_texts_of_a_step_are_cut(store):
    metadata = {"note": "n" * 9000, "name": "é"}
    store.save(1, {"a" * 5000: 1, "b\u202e": 2}, metadata=metadata).result()
    html = store[1]._repr_html_()
    cells = Table(html).cells
    assert max(map(len, cells)) <= 301 and len(html) < 2000
    assert cells[cells.index("metadata") + 1].startswith('{"note": "nnn')
    assert "b\\u202e" in cells


# ---- histories ----------------------------------------------------------------------------------


def test_a_history_of_a_number(store):
    for step in range(0, 30, 3):
        store.save(step, {"n": step * step, "on": step > 9, "f": np.float32(0.1)})
    store.wait()
    found = store.history("n")
    parsed = Table(found._repr_html_())
    assert parsed.cells[1:4] == ["10 steps of int64[]", "step", "value"]
    assert parsed.cells[4:] == [str(each) for step in range(0, 30, 3) for each in (step, step**2)]
    (((first, *_, last),),) = parsed.lines
    assert (first, last) == ((2, 22), (158, 2))
    assert Table(store.history("on")._repr_html_()).cells[-1] == "True"
    assert Table(store.history("f")._repr_html_()).cells[-1].startswith("0.1")
    assert len(Table(store.history("n", steps=[3])._repr_html_()).lines[0]) == 1


ARRAYS = ["float32", "int32", "bool", "complex64", "bfloat16", "float8_e5m2", "int4", "uint64"]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_history_of_an_array(store, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    arrays = [(np.random.default_rng(seed).standard_normal((9, 11)) * 3 + 1j * (name[0] == "c"))
              for seed in range(3)]
    arrays = [(each if name[0] == "c" else np.abs(each.real)).astype(dtype) for each in arrays]
    for step, each in enumerate(arrays):
        store.save(step, {"w": each})
    store.wait()
    found = store.history("w")
    cells = Table(found._repr_html_()).cells
    assert cells[1:7] == [f"3 steps of {name}[9, 11]", "step", "min", "mean", "max", "norm"]
    axes = found.plot("min", "mean", "max", "norm", ax=Lines())
    for step, each in enumerate(arrays):
        wide = np.abs(each) if name[0] == "c" else each
        wide = wide.astype(np.float64)
        wanted = [wide.min(), wide.mean(), wide.max(), np.sqrt((wide**2).sum())]
        shown = cells[7 + 5 * step:12 + 5 * step]
        assert shown[0] == str(step)
        assert [float(cell) for cell in shown[1:]] == pytest.approx(wanted, rel=1e-5)
        assert [line[step] for line in axes.drawn.values()] == pytest.approx(wanted, rel=1e-6)


class Lines:
    """Axes that keep what is drawn on them."""

    def __init__(self):
        self.drawn: dict[str, list[float]] = {}

    def plot(self, x, y, label):
        self.drawn[label] = list(y)

    def set_xlabel(self, text):
        assert text == "step"

    def legend(self):
        pass


def test_histories_that_are_odd(store):
    for step in range(3):
        store.save(step, {"nan": np.array([math.nan, math.inf, 1.0]), "none": np.ones((0, 3)),
                          "deep": np.ones((2, 3, 4)), "big": np.zeros(12 << 20)})
    store.wait()
    assert Table(store.history("nan")._repr_html_()).cells[-4:] == ["nan"] * 4
    assert Table(store.history("none")._repr_html_()).cells[-4:] == ["nan", "nan", "nan", "0"]
    assert Table(store.history("deep")._repr_html_()).cells[-4:-1] == ["1", "1", "1"]
    (text,) = Table(store.history("big")._repr_html_()).cells
    assert text == "3 steps of float64[12582912], 288.0 MiB; plot() computes numbers of them"
    on_device = store.history("deep", like=jnp.ones((2, 3, 4)))
    assert isinstance(on_device.values, jax.Array)
    assert Table(on_device._repr_html_()).cells[-4:-1] == ["1", "1", "1"]


def test_a_history_of_statistics(path):
    with stepwell.open(path, statistics=True) as store:
        for step in range(4):
            values = np.arange(12.0) + step
            if step == 2:
                values[0] = math.nan
            store.save(step, {"w": values}).result()
        found = store.history("w", statistics=True)
    parsed = Table(found._repr_html_())
    assert parsed.cells[1:9] == ["statistics of 4 steps", "step", "min", "mean", "max", "norm",
                                 "nonfinite", "changed"]
    assert parsed.cells[9:13] == ["0", "0", "5.5", "11"]
    norm = f"{np.linalg.norm(range(3, 14)):.6g}"
    assert parsed.cells[9 + 14:9 + 21] == ["2", "3", "8", "13", norm, "1", "1"]
    axes = found.plot(ax=Lines())
    assert axes.drawn == {"min": [0, 1, 3, 3], "mean": [5.5, 6.5, 8, 8.5], "max": [11, 12, 13, 14]}
    assert found.plot("changed", "nonfinite", ax=Lines()).drawn["nonfinite"] == [0, 0, 1, 0]


def test_a_history_of_many_steps(store):
    store.save(1, {"n": 1}).result()
    shown = store.history("n")._replace(
        steps=tuple(range(100_000)), values=np.arange(100_000))._repr_html_()
    assert "… 99,960 more" in shown and len(shown) < 10_000


# ---- plots --------------------------------------------------------------------------------------


@pytest.fixture
def pyplot(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    yield pyplot
    pyplot.close("all")


def test_plots_have_the_numbers(store, pyplot):
    arrays = [np.random.default_rng(step).standard_normal((4, 5)) for step in range(6)]
    for step, array in enumerate(arrays):
        store.save(10 * step, {"w": array, "n": step * step})
    store.wait()
    axes = store.history("n").plot(color="red")
    (line,) = axes.lines
    assert axes is pyplot.gca() and axes.get_xlabel() == "step" and line.get_color() == "red"
    assert list(line.get_xdata()) == [0, 10, 20, 30, 40, 50]
    assert list(line.get_ydata()) == [0, 1, 4, 9, 16, 25] and axes.get_legend() is None
    _, other = pyplot.subplots()
    assert store.history("w", steps=[30, 0, 50]).plot(ax=other) is other
    assert [line.get_label() for line in other.lines] == ["min", "mean", "max"]
    assert [text.get_text() for text in other.get_legend().get_texts()] == ["min", "mean", "max"]
    assert list(other.lines[0].get_xdata()) == [0, 30, 50]
    assert list(other.lines[2].get_ydata()) == [arrays[i].max() for i in (0, 3, 5)]
    other.figure.savefig("/dev/null", format="png")
    norms = store.history("w").plot("norm", ax=pyplot.subplots()[1], label="|w|")
    assert norms.lines[0].get_label() == "|w|"
    assert list(norms.lines[0].get_ydata()) == pytest.approx([np.linalg.norm(w) for w in arrays])


def test_plots_that_cannot_be(store, monkeypatch):
    store.save(1, {"n": 1})
    store.wait()
    found = store.history("n")
    with pytest.raises(stepwell.InvalidArgumentError, match="no 'norm' to plot; there are value"):
        found.plot("norm", ax=Lines())
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"History\.plot draws with matplotlib.*pip install"):
        found.plot()


# ---- changes ------------------------------------------------------------------------------------


def test_changes_the_largest_first(store):
    same = np.ones(7)
    store.save(1, {"small": np.zeros(10), "big": np.zeros(1000), "same": same, EVIL: np.zeros(50),
                   "shape": np.zeros(300), "value": 1})
    store.save(2, {"small": np.ones(10), "big": np.ones(1000), "same": same, "new": np.zeros(100),
                   "shape": np.zeros(200, "i4"), "value": 2}).result()
    cells = Table(store.changed(1, 2)._repr_html_()).cells
    assert cells[0] == "step 1 -> step 2: 4 changed, 1 added, 1 removed, 1 unchanged"
    assert cells[1:6] == ["", "path", "type", "chunks", "size"]
    table = [cells[i:i + 5] for i in range(6, len(cells), 5)]
    assert [row[:2] for row in table] == [
        ["changed", "big"], ["added", "new"], ["changed", "shape"], ["removed", SHOWN_KEY],
        ["changed", "small"], ["changed", "value"]]
    assert table[0][2:] == ["float64[1000]", "1 of 1", "7.8 KiB"]
    assert table[2][2] == "float64[300] -> int32[200]"
    assert table[3][2:] == ["float64[50]", "", "400 B"]
    same = Table(store.changed(2, 2)._repr_html_()).cells
    assert same[0].startswith("step 2 -> step 2: 0 changed") and len(same) == 6


SHOWN_KEY = SHOWN.replace("</", "<\\/").replace("[", "\\[")  # as in a path


def test_changes_of_many_leaves_are_cut(store):
    store.save(1, {f"w{i}": i for i in range(3000)})
    store.save(2, {f"w{i}": np.ones(i + 1) for i in range(3000)}).result()
    changed = store.changed(1, 2)
    html = changed._repr_html_()
    cells = Table(html).cells
    assert cells[6:8] == ["changed", "w2999"] and "… 2,960 more, none larger" in cells
    assert len(html) < 10_000


# ---- charts -------------------------------------------------------------------------------------


def test_charts():
    assert means([1, 2, 3, 4], 2) == [1.5, 3.5] and means([], 5) == pytest.approx([math.nan],
                                                                                  nan_ok=True)
    assert scaled([0, 5, 10]) == [0, 0.5, 1] and scaled([3, 3]) == [0, 0]
    assert scaled([1e308, -1e308, math.inf, math.nan]) == [1, 0, None, None]
    assert means([1e308] * 4, 2) == [1e308, 1e308]
    for number in (0.1, 5, 1 / 3, -2e-310):  # of a constant nothing goes up and down
        assert set(scaled(means([number] * 1000, 60))) == {0}
    for numbers, lengths in (([], []), ([math.nan], []), ([5], [2]), ([1, math.nan, 2, 3], [2, 2]),
                             (range(1000), [160])):
        (lines,) = Table("<p>" + sparkline_svg(numbers, EVIL) + "</p>").lines
        assert [len(line) for line in lines] == lengths
    parsed = Table("<p>" + sparkline_svg([1, 2], EVIL) + "</p>")
    assert parsed.titles == [SHOWN]


# ---- a real kernel ------------------------------------------------------------------------------


CELLS = ["""
import numpy as np, stepwell
store = stepwell.open("run", statistics=True)
for step in range(5):
    store.save(step, {"w": np.arange(10.0) + step, "<i>": step}, metrics={"<b>": step}).result()
store
""", "store[3]", "store.history('<i>')", "store.history('w', statistics=True)",
    "store.changed(1, 3)", "store.stats()", "view = store[2]; store.close(); store", "view",
    "ax = store and stepwell.open('run', mode='r').history('w').plot(); ax"]


def test_a_kernel_shows_them(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    shown = notebooks.execute(notebook, tmp_path)
    tables = [Table(html) for html in shown[:8]]
    assert tables[0].cells[0].startswith("<stepwell store ") and tables[0].titles == [
        "<b>: 4, from 0 to 4"]
    assert tables[1].cells[0].startswith("step 3, committed ")
    assert tables[2].cells[1] == "5 steps of int64[]" and len(tables[2].lines) == 1
    assert tables[3].cells[1] == "statistics of 5 steps"
    assert tables[4].cells[0].startswith("step 1 -> step 3: 2 changed, ")
    assert tables[5].cells[0] == "stats"
    assert tables[6].cells[0].endswith(", closed>") and tables[7].cells[0].endswith(" is closed")
    assert "Axes" in shown[8]
    kinds = [kind for output in notebook.cells[8].outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 1


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (7, 3), (7, 2, 2), (7, 0), (3, 50)])
def test_numbers_of_blocks_of_steps_are_those_of_each(shape: tuple[int, ...],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell._over_time._BLOCK", 12)
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = numbers_over_time(values)
    for name, of_one in (("min", np.min), ("mean", np.mean), ("max", np.max),
                         ("norm", np.linalg.norm)):
        expected = [of_one(row.astype(np.float64).ravel()) if row.size or name == "norm" else np.nan
                    for row in values]
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)
        assert found[name].shape == shape[:1] and found[name].dtype == np.float64
