# SPDX-License-Identifier: Apache-2.0
"""`stepwell history`, against NumPy's own computation."""

import csv
import io
import os
import pathlib
import pty
import subprocess
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stepwell
from program import PROGRAM, document, error, ok
from stepwell._program.sparkline import sparkline


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run") as writer:
        for step in range(0, 50, 5):
            writer.save(step, {"params": {"w": array(step)}, "loss": 1 / (1 + step), "n": step,
                               "name": "run", **({"late": step} if step > 20 else {})})
    return tmp_path / "run"


def array(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).standard_normal((30, 40)).astype(np.float32)


def expected(values: np.ndarray[Any, Any]) -> dict[str, float]:
    if values.dtype.kind == "c":
        values = np.abs(values)
    wide = values.astype(np.float32 if values.dtype.kind not in "fciub" else values.dtype)
    wide = wide.astype(np.longdouble)
    return {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max()),
            "norm": float(np.sqrt((wide**2).sum()))}


def test_numbers_about_an_array(store: pathlib.Path) -> None:
    report = document("history", store, "params/w")
    assert (report["dtype"], report["shape"], report["kind"]) == ("float32", [30, 40], "array")
    assert [row["step"] for row in report["steps"]] == list(range(0, 50, 5))
    for row in report["steps"]:
        assert {name: row[name] for name in ("min", "mean", "max", "norm")} == pytest.approx(
            expected(array(row["step"])), rel=1e-12)
    lines = ok("history", store, "params/w").splitlines()
    assert lines[0].split() == ["STEP", "MIN", "MEAN", "NORM", "MAX"] and len(lines) == 11
    assert lines[1].split()[3] == f"{expected(array(0))['norm']:.6g}"
    part = document("history", store, "params/w", "--slice", "3:5, ::2", "--steps", "10:20")
    assert [row["step"] for row in part["steps"]] == [10, 15]
    assert part["steps"][1]["norm"] == pytest.approx(expected(array(15)[3:5, ::2])["norm"])


DTYPES = [*"?bHiLefdFD", "bfloat16", "float8_e5m2", "int4"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(tmp_path: pathlib.Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name)) if len(name) > 1 else np.dtype(name)
    arrays = [(np.random.default_rng(seed).standard_normal((9, 11)) * 3).astype(np.float32)
              for seed in range(3)]
    arrays = [each > 0 if name == "?" else np.abs(each).astype(dtype) for each in arrays]
    with stepwell.open(tmp_path / "run") as writer:
        for step, each in enumerate(arrays):
            writer.save(step, {"x": each})
    for row, each in zip(document("history", tmp_path / "run", "x")["steps"], arrays, strict=True):
        del row["step"]
        assert row == pytest.approx(expected(each), rel=1e-12)


def test_values(store: pathlib.Path) -> None:
    report = document("history", store, "n")
    assert report["kind"] == "int"
    assert report["steps"] == [{"step": step, "value": step} for step in range(0, 50, 5)]
    assert ok("history", store, "loss", "--steps", ":6") == (
        "STEP                VALUE\n   0                  1.0\n   5  0.16666666666666666\n")
    element = document("history", store, "params/w", "--slice", "3, 4", "--steps", "5")
    assert element["steps"] == [{"step": 5, "value": float(str(array(5)[3, 4]))}]
    assert [row["step"] for row in document("history", store, "late")["steps"]] == [
        25, 30, 35, 40, 45]


def test_csv(store: pathlib.Path) -> None:
    rows = [*csv.DictReader(io.StringIO(ok("history", store, "loss", "--csv")))]
    assert [(int(row["step"]), float(row["value"])) for row in rows] == [
        (step, 1 / (1 + step)) for step in range(0, 50, 5)]
    rows = [*csv.DictReader(io.StringIO(ok("history", store, "params/w", "--csv")))]
    assert list(rows[0]) == ["step", "min", "mean", "norm", "max"]
    assert float(rows[2]["max"]) == expected(array(10))["max"]


def test_large_and_odd_arrays(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(2)
    large = random.standard_normal((9, 1 << 20)).astype(np.float32)  # more than one piece
    odd = np.array([np.nan, np.inf, 1.0])
    with stepwell.open(tmp_path / "run") as writer:
        for step in range(2):
            writer.save(step, {"large": large + step, "odd": odd, "empty": np.ones((0, 3))})
    for row in document("history", tmp_path / "run", "large")["steps"]:
        wanted = expected(large + np.float32(row["step"]))
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
    (row, _) = document("history", tmp_path / "run", "odd")["steps"]
    assert row == {"step": 0, "min": "NaN", "mean": "NaN", "norm": "NaN", "max": "NaN"}
    (row, _) = document("history", tmp_path / "run", "empty")["steps"]
    assert (row["norm"], row["min"]) == (0, "NaN")
    assert ",NaN," in ok("history", tmp_path / "run", "odd", "--csv")


def test_what_is_wrong(store: pathlib.Path) -> None:
    assert "nearest: params" in error("history", store, "param", status=3)
    assert "is a node" in error("history", store, "params", status=2)
    assert "glob" in error("history", store, "*", status=2)
    assert "is a str" in error("history", store, "name", status=2)
    assert "no step in 1:4" in error("history", store, "n", "--steps", "1:4", status=3)
    assert "steps 5, 10, 15, 20 have nothing" in error(
        "history", store, "late", "--steps", "5:", status=3)
    assert "FIRST:END" in error("history", store, "n", "--steps", "-1:4", status=2)
    assert "at least 1" in error("history", store, "n", "--steps", "1:4:0", status=2)
    assert "--slice is for arrays" in error("history", store, "n", "--slice", "0", status=2)
    assert "out of bounds" in error("history", store, "params/w", "--slice", "30", status=2)
    report = document("history", store, "n", "--csv", status=2)
    assert "give one" in report["error"]["message"]


def on_a_terminal(*arguments: object, **environment: str) -> str:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as reader:
        with subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=theirs, stderr=theirs,
                              env={**os.environ, "PYTHONUTF8": "0", **environment}) as process:
            os.close(theirs)
            text = b""
            try:
                while part := reader.read(1 << 16):
                    text += part
            except OSError:  # the end, as Linux says it
                pass
        assert process.returncode == 0, text
    return text.decode().replace("\r\n", "\n")


def test_a_line_of_bars_on_a_terminal(store: pathlib.Path) -> None:
    plain = ok("history", store, "n")
    assert on_a_terminal("history", store, "n", PYTHONIOENCODING="utf-8") == (
        plain + "value ▁▂▃▃▄▅▆▆▇█\n")
    assert on_a_terminal("history", store, "n", PYTHONIOENCODING="ascii") == plain
    assert on_a_terminal("history", store, "n", "--csv", PYTHONIOENCODING="utf-8") == ok(
        "history", store, "n", "--csv")
    last = on_a_terminal("history", store, "params/w", PYTHONIOENCODING="utf-8").splitlines()[-1]
    assert last.startswith("norm ") and len(last) == 15


def test_bars() -> None:
    assert sparkline([0, 7], 80) == "▁█"
    assert sparkline([3, 3, 3], 80) == "▁▁▁"
    assert sparkline([0, float("nan"), 1, float("inf")], 80) == "▁ █ "
    assert len(sparkline(range(1000), 60)) == 60
    assert sparkline(range(1000), 8) == "▁▂▃▄▅▆▇█"


# ---- statistics ---------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: pathlib.Path) -> pathlib.Path:
    """Steps with statistics: of one an element is not finite."""
    with stepwell.open(tmp_path / "watched", statistics=True) as writer:
        for step in range(5):
            values = array(step)
            if step == 3:
                values[7, 7] = np.nan
            writer.save(step, {"w": values, "loss": np.float32(step), "n": step}).result()
    return tmp_path / "watched"


def test_statistics_of_the_steps(watched: pathlib.Path) -> None:
    report = document("history", watched, "w")
    for row in report["steps"]:
        wanted = expected(array(row["step"])) if row["step"] != 3 else None
        assert row["nonfinite"] == (1 if row["step"] == 3 else 0)
        assert row["changed"] == ("NaN" if row["step"] == 0 else 1)
        if wanted:
            assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
    lines = ok("history", watched, "w").splitlines()
    assert lines[0].split() == ["STEP", "MIN", "MEAN", "NORM", "MAX", "NONFINITE", "CHANGED"]
    assert lines[4].split()[5:] == ["1", "1"]
    assert ok("history", watched, "w", "--csv").splitlines()[0] == \
        "step,min,mean,norm,max,nonfinite,changed"
    # What was not taken is read.
    assert ok("history", watched, "loss").splitlines()[0].split() == ["STEP", "VALUE"]
    assert "nonfinite" not in document("history", watched, "w", "--slice", "0")["steps"][0]


def test_an_array_is_read_where_a_step_lacks_statistics(watched: pathlib.Path) -> None:
    with stepwell.open(watched) as writer:
        writer.save(5, {"w": array(5), "loss": np.float32(5), "n": 5}).result()
    report = document("history", watched, "w")
    assert len(report["steps"]) == 6 and "nonfinite" not in report["steps"][0]
    assert report["steps"][5]["norm"] == pytest.approx(expected(array(5))["norm"], rel=1e-12)


def test_columns_of_show_and_ls(watched: pathlib.Path) -> None:
    lines = ok("show", watched, "3").splitlines()
    assert lines[1].split() == ["MIN", "MEAN", "NORM", "MAX", "NONFINITE", "CHANGED"]
    row = next(line for line in lines if line.startswith("w "))
    assert row.split()[-2:] == ["1", "<=100%"]
    entries = {entry["path"]: entry for entry in document("show", watched, "3")["entries"]}
    taken = entries["w"]["statistics"]
    assert (taken["elements"], taken["nonfinite"], taken["changed"]) == (1200, 1, 1200)
    assert taken["max"] == float(array(3).max())
    assert "statistics" not in entries["n"]
    assert document("show", watched, "3")["step"]["items"][0]["nonfinite"] == 1
    assert "NONFINITE" in ok("ls", watched).splitlines()[0]
    assert [step.get("nonfinite") for step in document("ls", watched)["steps"]] == [
        None, None, None, 1, None]


def test_no_columns_where_there_is_nothing_to_say(store: pathlib.Path) -> None:
    assert "NONFINITE" not in ok("show", store) + ok("ls", store)
