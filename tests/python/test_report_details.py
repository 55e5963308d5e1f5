# SPDX-License-Identifier: Apache-2.0
"""What the server of a run tells of elements and changes, against NumPy's numbers of the loaded
arrays."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import stepwell
from stepwell._printed import selection
from stepwell._report import sampling
from stepwell._report.details import changes_of, leaf_of


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def fill(path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    with stepwell.open(path, statistics=True) as store:
        for step in range(3):
            holes = noise(300, 500, seed=step)
            holes[::7, ::11], holes[3, 4], holes[5] = np.nan, -np.inf, np.inf
            store.save(step, {
                "w": {"plain": noise(200, 300, seed=step), "holes": holes, "same": noise(40)},
                "deep": noise(4, 5, 6, 7, seed=step), "line": noise(1000, seed=step),
                "scalar": np.float32(step), "none": np.zeros((0, 3), np.float32),
                "half": noise(30, 30, seed=step).astype(ml_dtypes.bfloat16),
                "small": rng.integers(-8, 8, (20, 20)).astype(ml_dtypes.int4),
                "flags": rng.integers(0, 2, 500).astype(bool),
                "wave": noise(50, seed=step) + 1j * noise(50, seed=9),
                "wide": np.array([1e308, -1e308, 0.5, step]), "one": np.full(9, 2.5),
                "key": jax.random.key(step), "n": step, "name": "<b>run</b>",
                **({"late": np.arange(4)} if step == 2 else {"early": 1})}).result()


ARRAYS = ["w/plain", "w/holes", "deep", "line", "scalar", "none", "half", "small", "flags", "wave",
          "wide", "one"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("run") / "store"
    fill(path)
    return path


def as_float(array: np.ndarray) -> np.ndarray:
    return (np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else
            array.astype(np.float64))


def check_histogram(found: dict[str, Any], array: np.ndarray, bins: int, low: float | None = None,
                    high: float | None = None) -> None:
    wide = as_float(array).reshape(-1)
    finite = wide[np.isfinite(wide)]
    assert found["nan"] == int(np.isnan(wide).sum())
    assert found["infinite"] == int(np.isinf(wide).sum())
    assert found["counted"] == found["of"] == wide.size and found["note"] is None
    if not finite.size:
        assert found["counts"] == []
        return
    low = float(finite.min()) if low is None else low
    high = float(finite.max()) if high is None else high
    scale = 1 if math.isfinite(high - low) else 0.25  # numpy.histogram overflows there
    counts, edges = np.histogram(finite * scale, bins, (low * scale, high * scale))
    assert found["counts"] == counts.tolist()
    np.testing.assert_allclose(found["edges"], edges / scale, rtol=1e-12)
    assert found["below"] == int((finite < low).sum())
    assert found["above"] == int((finite > high).sum())
    assert sum(found["counts"]) + found["below"] + found["above"] == finite.size


def check_heat_map(found: dict[str, Any], array: np.ndarray) -> None:
    wide = as_float(array)
    wide = wide.reshape(1, -1) if wide.ndim == 1 else wide
    assert found["shape"] == list(wide.shape) and found["note"] is None
    rows, columns = found["row_edges"], found["column_edges"]
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (0, wide.shape[0], 0, wide.shape[1])
    assert len(rows) - 1 == min(128, wide.shape[0])
    for i in range(len(rows) - 1):
        for k in range(len(columns) - 1):
            block = wide[rows[i]:rows[i + 1], columns[k]:columns[k + 1]]
            finite = block[np.isfinite(block)]
            got = [found[name][i][k] for name in ("mean", "min", "max")]
            if not finite.size:
                assert block.size and got == [None] * 3
                continue
            with np.errstate(over="ignore"):
                want = [finite.mean(), finite.min(), finite.max()]
            assert got == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ARRAYS)
def test_elements_of_every_kind(filled: pathlib.Path, name: str) -> None:
    with stepwell.open(filled, "r") as store:
        array = np.asarray(store[1][name])
        found = json.loads(json.dumps(leaf_of(store, 1, name, "", 20), allow_nan=False))
        assert (found["dtype"], found["shape"]) == (array.dtype.name, list(array.shape))
        check_histogram(found["histogram"], array, 20)
        plane = array[(0,) * (array.ndim - 2)] if array.ndim > 2 else array
        if plane.ndim == 0 or not plane.size:
            assert found["heatmap"] is None
        else:
            check_heat_map(found["heatmap"], plane)
        if array.size > 4096:
            assert found["values"] is None
        else:
            assert found["values"]["shape"] == list(array.shape)
            check_values(found["values"]["values"], array)
        info = store.tree(1)[name].statistics
        if info is not None and not info.nonfinite and name != "wide":
            assert found["statistics"] == info._asdict()


def check_values(found: list[Any], array: np.ndarray) -> None:
    flat = array.reshape(-1)
    if array.dtype.kind == "c":
        assert [complex(*each) for each in found] == pytest.approx(flat.tolist(), rel=1e-6)
        return
    back = np.array([float(each) for each in found]).astype(array.dtype)
    np.testing.assert_array_equal(back, flat)


@pytest.mark.parametrize("index", ["3:20, ::2", "..., 7", "::-1, 5:100:3", "-1", "5:5, :",
                                   ":, -3:"])
def test_slices(filled: pathlib.Path, index: str) -> None:
    with stepwell.open(filled, "r") as store:
        array = np.asarray(store[2]["w/holes"])[eval(f"np.s_[{index}]")]
        found = leaf_of(store, 2, "w/holes", index, 7)
        check_histogram(found["histogram"], array, 7)
        if array.size:
            check_heat_map(found["heatmap"], array)
        again = leaf_of(store, 2, "w/holes", found["slice"], 7)
        assert again["histogram"] == found["histogram"] and again["slice"] == found["slice"]
        if array.size <= 4096:
            check_values(found["values"]["values"], array)


def test_a_histogram_between_ends(filled: pathlib.Path) -> None:
    with stepwell.open(filled, "r") as store:
        array = np.asarray(store[0]["w/holes"])
        for low, high in ((-0.5, 1.0), (2.0, 3.0), (-1.0, None), (None, 0.25), (50.0, 60.0)):
            found = leaf_of(store, 0, "w/holes", "", 9, low, high)["histogram"]
            check_histogram(found, array, 9, low, high)
        beyond = leaf_of(store, 0, "w/holes", "", 9, 50.0)["histogram"]
        assert beyond["below"] == np.isfinite(array).sum() and sum(beyond["counts"]) == 0


@pytest.mark.parametrize("end", [1, -1])
def test_a_histogram_of_the_largest_numbers(store: stepwell.Store, end: int) -> None:
    largest = end * float(np.finfo(np.float64).max)
    store.save(0, {"w": np.full(3, largest), "v": np.zeros(3)}).result()
    found = leaf_of(store, 0, "w", "")["histogram"]
    assert found["edges"][0] <= largest <= found["edges"][-1] and sum(found["counts"]) == 3
    low, high = (largest, None) if end > 0 else (None, largest)
    found = leaf_of(store, 0, "v", "", 10, low, high)["histogram"]
    assert found["below" if end > 0 else "above"] == 3 and np.isfinite(found["edges"]).all()


def test_the_item_of_a_leaf(store: stepwell.Store) -> None:
    """A path begins with the item only in a step that has another one than "state"."""
    store.save(0, {"opt": {"a": np.zeros(3)}}).result()
    store.save(1, items={"state": {"opt": {"a": np.ones(3)}}, "opt": {"a": np.full(3, 2)}}).result()
    for step, path, item, value in ((0, "opt/a", "state", 0), (0, "state/opt/a", "state", 0),
                                    (1, "state/opt/a", "state", 1), (1, "opt/a", "opt", 2)):
        found = leaf_of(store, step, path, "", item=item)
        assert found["values"]["values"] == [value] * 3
    for step, item in ((0, "opt"), (1, "state")):
        with pytest.raises(stepwell.PathNotFoundError, match="in an item"):
            leaf_of(store, step, "opt/a", "", item=item)


def test_values_that_are_no_arrays(filled: pathlib.Path) -> None:
    with stepwell.open(filled, "r") as store:
        assert leaf_of(store, 1, "n", "")["value"] == "1"
        found = leaf_of(store, -1, "name", "")
        assert (found["kind"], found["value"], found["step"]) == ("str", "<b>run</b>", 2)
        key = leaf_of(store, 1, "key", "")
        assert key["kind"] == "key" and key["dtype"] == "uint32"
        check_values(key["values"]["values"], np.asarray(jax.random.key_data(jax.random.key(1))))


def test_what_is_too_large_is_read_in_part(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    array = noise(256, 1024)
    with stepwell.open(path) as store:
        store.save(0, {"w": array}, chunks=stepwell.ChunkShape(4096)).result()
        monkeypatch.setattr(sampling, "READ_MAX", 10 * 4096)
        found = leaf_of(store, 0, "w", "", 10)
        assert store.stats()["last_load"]["bytes_out"] <= 10 * 4096
        part = found["histogram"]
        assert part["counted"] == 10 * 1024 and part["of"] == array.size
        assert sum(part["counts"]) == part["counted"] and "10 of 256 chunks" in part["note"]
        map_ = found["heatmap"]
        shown = [(i, k) for i, row in enumerate(map_["mean"]) for k, each in enumerate(row)
                 if each is not None]
        assert 0 < len(shown) < 128 * 128 and "10 of 256" in map_["note"]
        for i, k in shown:
            block = array[map_["row_edges"][i]:map_["row_edges"][i + 1],
                          map_["column_edges"][k]:map_["column_edges"][k + 1]]
            assert block.min() - 1e-5 <= map_["mean"][i][k] <= block.max() + 1e-5
        assert found["values"] is None
        few = leaf_of(store, 0, "w", "::8, ::64")  # few elements of many chunks
        assert few["histogram"]["counted"] == 10 * 16 and few["values"] is None


@pytest.mark.parametrize("seed", range(6))
def test_a_sample_is_what_the_slice_has_there(path: pathlib.Path, seed: int,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 60, 3))
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    with stepwell.open(path) as store:
        store.save(0, {"w": array}, chunks=stepwell.ChunkShape(int(rng.integers(4096, 20_000))))
        store.wait()
        view = store[0]["w"]
        for limit in (1, 50_000, 1 << 20):
            monkeypatch.setattr(sampling, "READ_MAX", limit)
            text = ", ".join(str(rng.choice([":", "::-1", "3::2", "0", "::3"]))
                             for _ in shape)
            taken = selection.parse(text.replace("3::2", "::2"), shape)
            whole = array[selection.index_of(taken)]
            read = sampling.sample(view, taken)
            assert read.shape == whole.shape
            for piece in read.pieces:
                at = tuple(slice(axis.start, axis.stop) for axis in piece.places)
                np.testing.assert_array_equal(piece.values, whole[at])
            if read.note is None:
                assert read.elements == whole.size
            else:
                chunk = math.prod(view.chunk_shape) * 4
                assert store.stats()["last_load"]["bytes_out"] <= max(limit, chunk)


def test_changes(filled: pathlib.Path) -> None:
    with stepwell.open(filled, "r") as store:
        want = store.changed(0, 2)
        found = changes_of(store, 0, 2)
        assert {row["path"] for row in found["changed"]} == set(want.changed)
        for row in found["changed"]:
            leaf = want.changed[row["path"]]
            assert (row["chunks_changed"], row["chunks"], row["nbytes_changed"], row["item"]) == (
                leaf.chunks_changed, leaf.chunks, leaf.nbytes_changed, leaf.item)
            assert not row["unsure"]
        sizes = [row["nbytes_changed"] for row in found["changed"]]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] == 300 * 500 * 4
        assert [row["path"] for row in found["added"]] == [*want.added] == ["late"]
        assert [row["path"] for row in found["removed"]] == [*want.removed] == ["early"]
        assert (found["unchanged"], found["left_out"]) == (want.unchanged, 0)


def test_changes_that_only_reading_could_tell(store: stepwell.Store) -> None:
    array = noise(64, 64)
    store.save(0, {"w": array})
    store.save(1, {"w": array}, chunks=stepwell.ChunkShape(4096)).result()
    before = store.stats()["last_load"]
    (row,) = changes_of(store, 0, 1)["changed"]
    assert row["unsure"] and row["path"] == "w" and store.stats()["last_load"] == before
