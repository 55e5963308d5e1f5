# SPDX-License-Identifier: Apache-2.0
"""`stepwell diff`, against NumPy's own computation."""

import pathlib
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stepwell
from program import document, error, ok, run


def save(path: pathlib.Path, *states: dict[str, Any], first: int = 0) -> pathlib.Path:
    with stepwell.open(path) as writer:
        for step, state in enumerate(states, first):
            writer.save(step, state)
    return path


def number(value: Any) -> float:
    """Back from JSON."""
    return float(value)


def expected(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, float]:
    """Compares two arrays without NaNs of one kind only, as NumPy does."""
    wide: Any = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    if a.dtype.kind not in "fciub":
        a, b = a.astype(np.float32), b.astype(np.float32)
    old, new = a.astype(wide).ravel(), b.astype(wide).ravel()
    distance = np.abs(old - new)
    larger = np.maximum(np.abs(old), np.abs(new))
    relative = np.divide(distance, larger, out=np.zeros_like(distance), where=larger > 0)
    return {
        "max_absolute": float(distance.max(initial=0)),
        "max_relative": float(relative.max(initial=0)),
        "l2_a": float(np.sqrt((np.abs(old) ** 2).sum())),
        "l2_b": float(np.sqrt((np.abs(new) ** 2).sum())),
        "l2_difference": float(np.sqrt((distance**2).sum())),
    }


def check(found: dict[str, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    bytes_a = np.frombuffer(a.tobytes(), np.uint8)
    bytes_b = np.frombuffer(b.tobytes(), np.uint8)
    changed = (bytes_a != bytes_b).reshape(-1, a.itemsize)
    assert found["changed_bytes"] == changed.sum()
    assert found["changed_elements"] == changed.any(axis=1).sum()
    for name, value in expected(a, b).items():
        assert number(found[name]) == pytest.approx(value, rel=1e-12), name


FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
DTYPES = [*"?bBhHiIlLefdFD", *FLOATS, "int4", "uint2"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_as_numpy_computes_it(tmp_path: pathlib.Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name)) if len(name) > 1 else np.dtype(name)
    random = np.random.default_rng(7)
    a = (random.standard_normal((50, 41)) * 3).astype(dtype)
    if dtype.kind == "b":
        a = random.standard_normal(a.shape) > 0
    if dtype.kind == "c":
        a = (a + 1j * random.standard_normal(a.shape)).astype(dtype)
    b = a.copy()
    b[10:20] = b[20:30]
    store = save(tmp_path / "run", {"x": a}, {"x": b})
    (found,) = document("diff", store, 0, 1)["changed"]
    assert (found["path"], found["changes"]) == ("x", ["data"])
    check(found, a, b)


def test_large_arrays_piece_by_piece(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(8)
    a = random.standard_normal((3, 4000, 1000)).astype(np.float32)  # 48 MB: more than one piece
    b = a.copy()
    b[1, 100:200] *= np.float32(1.5)
    b[2, -1, -1] = 9
    store = save(tmp_path / "run", {"x": a, "y": a[0]}, {"x": b, "y": a[0]})
    report = document("diff", store, 0, 1)
    assert (report["same"], report["unchanged"]) == (False, 1)
    (found,) = report["changed"]
    check(found, a, b)


def test_numbers_that_doubles_cannot_hold(tmp_path: pathlib.Path) -> None:
    big = {"i": np.array([2**63 - 1, -(2**63)]), "u": np.array([2**64 - 1], np.uint64)}
    new = {"i": np.array([2**63 - 2, 2**63 - 1]), "u": np.array([2**64 - 2], np.uint64)}
    huge = {"d": np.array([1e300, 1e300])}
    store = save(tmp_path / "run", big | huge, new | {"d": np.array([1e300, -1e300])})
    found = {entry["path"]: entry for entry in document("diff", store, 0, 1)["changed"]}
    assert found["i"]["max_absolute"] == float(2**64 - 1)
    assert found["u"]["max_absolute"] == 1.0
    assert found["d"]["l2_difference"] == 2e300
    assert found["d"]["l2_a"] == pytest.approx(2**0.5 * 1e300, rel=1e-15)


def test_nan_and_infinity(tmp_path: pathlib.Path) -> None:
    nan, inf = np.nan, np.inf
    a = {"same": np.array([nan, inf, 0.0]), "one": np.array([nan, 1.0]), "inf": np.array([inf, 1])}
    b = {"same": np.array([nan, inf, -0.0]), "one": np.array([2.0, 1.0]), "inf": np.array([3, 1.0])}
    store = save(tmp_path / "run", a, b)
    found = {entry["path"]: entry for entry in document("diff", store, 0, 1)["changed"]}
    assert found["same"]["changed_bytes"] == 1  # the sign of zero
    assert (found["same"]["max_absolute"], found["same"]["l2_difference"]) == (0.0, 0.0)
    assert found["same"]["l2_a"] == "NaN"
    assert (found["one"]["max_absolute"], found["one"]["nan_mismatches"]) == ("NaN", 1)
    assert (found["one"]["max_relative"], found["one"]["l2_difference"]) == ("NaN", "NaN")
    assert (found["inf"]["max_absolute"], found["inf"]["l2_difference"]) == ("Infinity", "Infinity")
    assert "1 element is NaN in one step only" in ok("diff", store, 0, 1)


OLD = {
    "params": {"w": np.ones((4, 3), np.float32), "gone": np.ones(2)},
    "dtype": np.ones(3, np.float32),
    "shape": np.ones(3),
    "kind": np.ones(3),
    "value": 1,
    "text": "a" * 2000,
    "same": "unchanged",
    "list": [1, 2],
    "empty": {},
}
NEW = {
    "params": {"w": np.full((4, 3), 2, np.float32), "new": np.ones(5, np.int8)},
    "dtype": np.ones(3, np.float64),
    "shape": np.ones((3, 1)),
    "kind": "now a value",
    "value": 2,
    "text": "b" * 2000,
    "same": "unchanged",
    "list": (1, 2),
    "empty": {},
}


def test_structure(tmp_path: pathlib.Path) -> None:
    store = save(tmp_path / "run", OLD, NEW)
    report = document("diff", store, 0, 1)
    assert report["same"] is False
    assert [entry["path"] for entry in report["added"]] == ["params/new"]
    assert [entry["path"] for entry in report["removed"]] == ["params/gone"]
    assert report["added"][0]["dtype"] == "int8"
    changes = {entry["path"]: entry["changes"] for entry in report["changed"]}
    assert changes == {
        "params/w": ["data"],
        "dtype": ["dtype"],
        "shape": ["shape"],
        "kind": ["type"],
        "value": ["data"],
        "text": ["data"],
        "list": ["container"],
    }
    value = next(entry for entry in report["changed"] if entry["path"] == "value")
    assert (value["a"]["value"], value["b"]["value"]) == (1, 2)
    text = ok("diff", store, 0, 1)
    assert re.search(r"^- +params/gone +float64\[2\] +removed$", text, re.MULTILINE)
    assert re.search(r"^\+ +params/new +int8\[5\] +added$", text, re.MULTILINE)
    assert re.search(r"^~ +dtype +float32\[3\] -> float64\[3\] +dtype$", text, re.MULTILINE)
    assert re.search(r"^~ +value +int 1 -> int 2 +data$", text, re.MULTILINE)
    assert text.endswith("7 changed, 1 added, 1 removed, 3 the same\n")


def test_a_path_and_the_same_step(tmp_path: pathlib.Path) -> None:
    store = save(tmp_path / "run", OLD, NEW)
    below = document("diff", store, 0, 1, "params")
    assert [entry["path"] for entry in below["changed"]] == ["params/w"]
    gone = document("diff", store, 0, 1, "params/gone")
    assert [entry["path"] for entry in gone["removed"]] == ["params/gone"]
    message = error("diff", store, 0, 1, "params/nowhere", status=3)
    assert re.search(r"params.*\bw\b", message)
    itself = document("diff", store, 1, "latest")
    assert (itself["same"], itself["changed"], itself["unchanged"]) == (True, [], 10)
    assert ok("diff", store, 1, 1) == "0 changed, 0 added, 0 removed, 10 the same\n"


def test_two_stores(tmp_path: pathlib.Path) -> None:
    one = save(tmp_path / "one", OLD)
    two = save(tmp_path / "two", OLD | {"value": 7}, first=5)
    report = document("diff", one, 0, 5, "--other", two)
    assert [entry["path"] for entry in report["changed"]] == ["value"]
    assert report["b"] == {"step": 5, "store": str(two)}
    assert "has no step 5" in error("diff", one, 0, 5, status=3)
    assert "nowhere" in error("diff", one, 0, 5, "--other", tmp_path / "nowhere", status=3)


def test_steps_with_other_items(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(0, {"w": np.ones(3)})
        writer.save(1, items={"state": {"w": np.zeros(3)}, "dataset": {"epoch": 1}})
    report = document("diff", tmp_path / "run", 0, 1)
    assert [entry["path"] for entry in report["changed"]] == ["state/w"]
    assert [entry["path"] for entry in report["added"]] == ["dataset/epoch"]


def test_exit_code(tmp_path: pathlib.Path) -> None:
    store = save(tmp_path / "run", OLD, NEW)
    assert run("diff", store, 0, 1).returncode == 0
    result = run("diff", store, 0, 1, "--exit-code")
    assert (result.returncode, result.stderr) == (7, "")
    assert result.stdout.endswith("the same\n")
    assert document("diff", store, 0, 1, "--exit-code", status=7)["same"] is False
    assert run("diff", store, 1, 1, "--exit-code").returncode == 0
    assert run("diff", store, 0, 1, "same", "--exit-code").returncode == 0


def flip(store: pathlib.Path, needle: bytes) -> None:
    """Flips a bit of each place where the bytes are stored."""
    hits = 0
    for segment in sorted((store / "segments").iterdir()):
        content = bytearray(segment.read_bytes())
        at = content.find(needle)
        while at >= 0:
            content[at + len(needle) // 2] ^= 1
            hits += 1
            at = content.find(needle, at + 1)
        segment.write_bytes(content)
    assert hits


def noise(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def test_what_is_equal_is_not_read(tmp_path: pathlib.Path) -> None:
    a = noise(12 << 20, 1)  # some chunks of 1 MiB
    b = a.copy()
    b[5 << 20 : (5 << 20) + 100] = noise(100, 2)
    same = noise(5000, 3)
    store = save(tmp_path / "run", {"x": a, "same": same}, {"x": b, "same": same})
    flip(store, noise(5000, 3)[:100].tobytes())
    report = document("diff", store, 0, 1)
    (found,) = report["changed"]
    assert report["unchanged"] == 1 and found["chunks"] == {"changed": 1, "count": 12}
    check(found, a, b)
    lines = ok("diff", store, 0, 1).splitlines()
    assert lines[0] == "1 leaf with other content: 1 of 12 chunks, 1.0 MiB"
    assert re.search(r"^~ +x +uint8\[12582912\] +data +1/12 +100 B", lines[2])


def test_records_alone(tmp_path: pathlib.Path) -> None:
    a = {"x": noise(3 << 20, 1), "y": noise(900, 2), "n": 1, "d": np.ones(3), "same": "s"}
    b = {"x": noise(3 << 20, 4), "y": noise(900, 5), "n": 2, "d": np.ones(3, "f"), "same": "s"}
    store = save(tmp_path / "run", a, b)
    for array in (a["x"], a["y"], b["x"], b["y"]):
        flip(store, array[-100:].tobytes())
    assert run("diff", store, 0, 1).returncode == 4
    report = document("diff", store, 0, 1, "--records", "--exit-code", status=7)
    assert {each["path"]: (each["changes"], each.get("chunks", {}).get("changed"))
            for each in report["changed"]} == {
        "x": (["data"], 3), "y": (["data"], 1), "n": (["data"], None), "d": (["dtype"], None)}
    assert "max_absolute" not in report["changed"][0] and report["unchanged"] == 1
    text = ok("diff", store, 0, 1, "--records")
    assert re.search(r"^~ +x +uint8\[3145728\] +data +3/3$", text, re.MULTILINE)
    assert text.endswith("4 changed, 0 added, 0 removed, 1 the same\n")


def test_the_same_content_in_other_chunks(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        array = np.arange(20_000.0).reshape(100, 200)
        writer.save(0, {"x": array})
        writer.save(1, {"x": array}, chunks=stepwell.ChunkShape(4096))
        writer.save(2, {"x": array + np.eye(100, 200)}, chunks=stepwell.ChunkShape(8192, (1,)))
    assert document("diff", tmp_path / "run", 0, 1)["same"] is True
    for step in (0, 1):
        (found,) = document("diff", tmp_path / "run", step, 2)["changed"]
        check(found, array, array + np.eye(100, 200))


def test_damage_is_not_a_difference(tmp_path: pathlib.Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 1 << 18, dtype=np.uint8)
    store = save(tmp_path / "run", {"x": noise}, {"x": noise[::-1].copy()})
    hit = 0
    for segment in sorted((store / "segments").iterdir()):
        content = bytearray(segment.read_bytes())
        at = content.find(noise[:100].tobytes())
        if at >= 0 and not hit:
            content[at + 500] ^= 1
            segment.write_bytes(content)
            hit += 1
    assert hit == 1
    assert "step 0" in error("diff", store, 0, 1, status=4)


def test_a_path_without_the_items_name_means_the_same_item(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(4, items={"state": {"w": 1}, "x": {"w": 2}})
        writer.save(5, {"w": 3})
    for steps in ((4, 5), (5, 4)):
        text = ok("diff", tmp_path / "run", *steps, "w")
        assert "1 changed, 0 added, 0 removed" in text
