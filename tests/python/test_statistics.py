# SPDX-License-Identifier: Apache-2.0
"""Statistics of saved arrays against NumPy's own; what a session says of elements that are not
finite and of a state that has stopped changing."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import stepwell
from group_runs import machines, run
from group_values import values
from stepwell import LeafStatistics

FLOATS = ["float16", "float32", "float64", "bfloat16", "float8_e3m4", "float8_e4m3",
          "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
          "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"]
INTEGERS = ["bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8",
            "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def array_of(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """All kinds of bits; of floats some that are not finite."""
    rng = np.random.default_rng(seed)
    dtype = dtype_of(name)
    if name == "bool" or dtype.itemsize == 1 and name[-1] in "24" and "int" in name:
        return rng.integers(0, 2, shape).astype(dtype)
    count = int(np.prod(shape))
    raw = rng.integers(0, 256, count * dtype.itemsize, np.uint8)
    if name == "float4_e2m1fn":
        raw &= 15
    return raw.view(dtype).reshape(shape)


def expected(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = array if array.dtype.kind in "iub" else array.astype(
            np.complex128 if array.dtype.kind == "c" else np.float64)
    finite = np.isfinite(wide)
    parts = wide[finite]
    if parts.dtype.kind == "c":
        parts = parts.view(np.float64)
    parts = parts.astype(np.float64)
    with np.errstate(over="ignore"):
        return {"elements": array.size, "nonfinite": int(array.size - finite.sum()),
                "min": float(parts.min()) if parts.size else None,
                "max": float(parts.max()) if parts.size else None,
                "norm": float(np.sqrt((parts * parts).sum())),
                "sum": float(parts.sum()), "magnitude": float(np.abs(parts).sum())}


def check(found: LeafStatistics | None, array: Any) -> None:
    assert found is not None
    array = np.asarray(array)
    wanted = expected(array)
    for name in ("elements", "nonfinite", "min", "max"):
        assert getattr(found, name) == wanted[name], name
    rel = 1e-6 if array.dtype.name in ("float16", "bfloat16", "float32", "complex64") else 1e-12
    assert found.norm == pytest.approx(wanted["norm"], rel=rel)
    assert found.sum == pytest.approx(wanted["sum"], abs=rel * wanted["magnitude"])


def of(store: stepwell.Store, step: int, path: str) -> LeafStatistics:
    found = store.tree(step)[path].statistics
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


SHAPES = [(), (1,), (0, 3), (37,), (130, 67), (3, 1, 5, 7)]


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, *COMPLEX])
def test_every_dtype_and_odd_shapes(path: pathlib.Path, name: str) -> None:
    tree = {str(number): array_of(name, shape, number) for number, shape in enumerate(SHAPES)}
    with stepwell.open(path, statistics=True) as store:
        store.save(1, tree).result()
    with stepwell.open(path, mode="r") as store:
        for key, array in tree.items():
            check(store.tree(1)[key].statistics, array)


def test_many_chunks_with_padding(path: pathlib.Path) -> None:
    array = array_of("float32", (2003, 1009))
    with stepwell.open(path, statistics=True) as store:
        store.save(1, {"w": array, "t": array.T, "part": array[::2, 3:700]}, chunks={
            "w": stepwell.ChunkShape(max_bytes=1 << 20, axes=(0, 1))}).result()
        check(of(store, 1, "w"), array)
        check(of(store, 1, "t"), array.T)
        check(of(store, 1, "part"), array[::2, 3:700])


def test_jax_arrays_and_optimizers(path: pathlib.Path) -> None:
    params = {"w": jax.random.normal(jax.random.key(1), (64, 33), jnp.bfloat16),
              "b": jnp.linspace(-1, 1, 7)}
    optimizer = optax.adam(1e-3)
    state = {"params": params, "opt": optimizer.init(params), "key": jax.random.key(3), "step": 4,
             "name": "run"}
    with stepwell.open(path, statistics=True) as store:
        store.save(4, state).result()
        tree = store.tree(4)
        for name, leaf in params.items():
            check(tree[f"params/{name}"].statistics, leaf)
        check(tree["opt/0/nu/w"].statistics, np.zeros((64, 33), np.float32))
        check(tree["key"].statistics, jax.random.key_data(state["key"]))
        assert tree["step"].statistics is None and tree["name"].statistics is None


def test_sharded_arrays(run_jax: Any, path: pathlib.Path) -> None:
    status, out, err = run_jax("""
import sys, jax, numpy as np, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
array = np.random.default_rng(0).standard_normal((64, 136)).astype(np.float32)
array[5, 7] = np.nan
specs = [P("x"), P(None, "x"), P("y", "x"), P(("x", "y")), P()]
with stepwell.open(sys.argv[1], statistics=True) as store:
    store.save(1, [jax.device_put(array, NamedSharding(mesh, spec)) for spec in specs]).result()
    for leaf in store.tree(1).values():
        found = leaf.statistics
        assert (found.elements, found.nonfinite) == (array.size, 1), found
        assert (found.min, found.max) == (np.nanmin(array), np.nanmax(array)), found
        assert np.isclose(found.norm, np.sqrt(np.nansum(array.astype(float) ** 2))), found
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


def test_none_where_they_were_not_asked_for(path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        store.save(1, {"w": np.ones(3)}).result()
        assert store.tree(1)["w"].statistics is None
        with pytest.raises(stepwell.InvalidArgumentError, match="no step has statistics of 'w'"):
            store.history("w", statistics=True)


# ---- changes ------------------------------------------------------------------------------------


def test_changed_elements(path: pathlib.Path) -> None:
    array = np.arange(100_000, dtype=np.float32)
    frozen = jnp.ones(1000)
    other = array.copy()
    other[[5, 77, 99_999]] += 1
    for delta in (False, True):
        with stepwell.open(path / str(delta), statistics=True, delta=delta) as store:
            store.save(1, {"w": array, "frozen": frozen}).result()
            first = of(store, 1, "w")
            assert first.changed is None and not first.changed_exactly
            store.save(2, {"w": other, "frozen": frozen}).result()
            changed = of(store, 2, "w")
            assert (changed.changed, changed.changed_exactly) == (
                (3, True) if delta else (100_000, False))
            store.save(3, {"w": other.copy(), "frozen": frozen}).result()
            for name in ("w", "frozen"):
                same = of(store, 3, name)
                assert same.changed == 0 and same.changed_exactly
            check(of(store, 3, "frozen"), frozen)


def test_an_array_that_is_not_read_after_sessions_without(path: pathlib.Path) -> None:
    frozen = jnp.arange(5000.0)
    with stepwell.open(path) as store:
        store.save(1, {"w": frozen}).result()
    with stepwell.open(path, statistics=True) as store:
        for step in (2, 3, 4):
            store.save(step, {"w": frozen}).result()
            check(of(store, step, "w"), frozen)
            assert store[step].owned_bytes == 0


# ---- history ------------------------------------------------------------------------------------


def test_history_reads_no_chunk(path: pathlib.Path) -> None:
    arrays = [array_of("float32", (300, 401), step) for step in range(6)]
    with stepwell.open(path, statistics=True) as store:
        for step, array in enumerate(arrays):
            tree = {"w": array, "late": np.ones(2)} if step > 2 else {"w": array}
            store.save(step, tree).result()  # so that the next one compares with it
    with stepwell.open(path, mode="r") as store:
        found = store.history("w", statistics=True)
        assert store.stats()["last_load"]["bytes_read"] == 0
        assert found.steps == tuple(range(6))
        for row, array in zip(found.values, arrays, strict=True):
            wanted = expected(array)
            assert row["min"] == wanted["min"] and row["max"] == wanted["max"]
            assert row["norm"] == pytest.approx(wanted["norm"])
            assert row["nonfinite"] == wanted["nonfinite"] > 0 and row["elements"] == array.size
        assert np.isnan(found.values["changed"][0]) and found.values["changed"][1] == 1
        some = store.history("w", [4, 2], statistics=True)
        assert some.steps == (4, 2) and some.values["norm"][0] == found.values["norm"][4]
        assert store.history("late", statistics=True).steps == (3, 4, 5)
        for wrong in ({"slice": 0}, {"like": arrays[0]}):
            with pytest.raises(stepwell.InvalidArgumentError, match="without slice and like"):
                store.history("w", statistics=True, **wrong)  # type: ignore[arg-type]
        with pytest.raises(stepwell.PathNotFoundError):
            store.history("wx", statistics=True)
        store.history("w")
        assert store.stats()["last_load"]["bytes_read"] > 0


def test_history_of_steps_of_which_some_lack_them(path: pathlib.Path) -> None:
    for step in range(4):
        with stepwell.open(path, statistics=step % 2 == 1) as store:
            store.save(step, {"w": np.full(3, step, np.float32)}).result()
    with stepwell.open(path, mode="r") as store:
        found = store.history("w", statistics=True)
        assert found.steps == (1, 3) and list(found.values["max"]) == [1, 3]
        with pytest.raises(stepwell.InvalidArgumentError, match="step 2 has no statistics of 'w'"):
            store.history("w", slice_of(1, 4), statistics=True)


def slice_of(*bounds: int) -> slice:
    return slice(*bounds)


def test_what_is_kept(path: pathlib.Path) -> None:
    """Deletes, reclaim, branches, replacing."""
    array = array_of("bfloat16", (400, 500))
    with stepwell.open(path, statistics=True) as store:
        for step in range(8):
            store.save(step, items={"state": {"w": array}, "other": {"w": np.ones(4)}}).result()
        store.delete(range(6))
        store.delete(7, items=["other"])
        store.reclaim()
        check(of(store, 7, "w"), array)
        store.branch("b", 7)
        store.save(7, {"w": array[:3]}, if_exists="replace").result()
        check(of(store, 7, "w"), array[:3])
    with stepwell.open(path, branch="b", mode="r") as store:
        check(of(store, 7, "w"), array)


# ---- elements that are not finite ---------------------------------------------------------------


BAD = {"fine": np.ones(3), "bad": np.array([1, np.nan, -np.inf, np.inf]), "n": 5}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Waits for a warning with this text; None: gives all there is."""
    def find(text: str, seconds: float = 10) -> str:
        end = time.monotonic() + seconds
        while text not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        return caplog.text
    with caplog.at_level("WARNING", "stepwell"):
        yield find


def test_ignored_unless_asked_for(path: pathlib.Path, lines: Any) -> None:
    with stepwell.open(path) as store:
        store.save(1, BAD).result()
    assert "NaN" not in lines("NaN", 0)


def test_a_warning(path: pathlib.Path, lines: Any) -> None:
    with stepwell.open(path, on_nonfinite="warn") as store:
        store.save(1, {"w": np.ones(2)}).result()
        store.save(3, BAD).result()
        said = lines("step 3 has")
        assert "step 3 has elements that are NaN or infinite: state/bad (3 of 4)" in said
        assert "step 1" not in said
        assert of(store, 3, "bad").nonfinite == 3


def test_an_error(path: pathlib.Path) -> None:
    with stepwell.open(path, on_nonfinite="error") as store:
        store.save(1, {"w": np.ones(2)}).result()
        handle = store.save(2, BAD)
        with pytest.raises(stepwell.InvalidArgumentError,
                           match=r"step 2 .*state/bad \(3 of 4\).*not saved"):
            handle.result()
        with pytest.raises(stepwell.InvalidArgumentError):
            store.save(1, BAD, if_exists="replace").result()
        assert store.steps() == [1] and np.array_equal(store.load(1)["w"], np.ones(2))
        with pytest.raises(stepwell.InvalidArgumentError, match="state/bad"):
            with store.draft(4) as draft:
                draft.add(BAD)
        store.save(5, {"w": np.ones(2)}).result()
        assert store.steps() == [1, 5]


def test_imports_and_pulls_are_not_refused(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        store.save(3, BAD).result()
        store.export(3, tmp_path / "orbax")
        store.push(3, tmp_path / "pushed")
        store.push(3, tmp_path / "many", layout="stepwell")
    np.savez(tmp_path / "step_9.npz", bad=BAD["bad"])
    with stepwell.open(tmp_path / "other", on_nonfinite="error") as store:
        store.pull(tmp_path / "many")
        store.pull(tmp_path / "pushed", step=4)
        store.import_checkpoint(tmp_path / "orbax", step=5).result()
        store.import_checkpoint(tmp_path / "step_9.npz", step=9).result()
        assert [of(store, step, "bad").nonfinite for step in (3, 4, 5, 9)] == [3, 3, 3, 3]


def test_arguments(path: pathlib.Path) -> None:
    with pytest.raises(stepwell.InvalidArgumentError, match="on_nonfinite must be one of"):
        stepwell.open(path, on_nonfinite="raise")  # type: ignore[arg-type]
    with pytest.raises(stepwell.InvalidArgumentError, match="statistics must be True or False"):
        stepwell.open(path, statistics=1)  # type: ignore[arg-type]
    stepwell.open(path).close()
    for wrong in ({"statistics": True}, {"on_nonfinite": "warn"}):
        with pytest.raises(stepwell.InvalidArgumentError, match="mode='a'"):
            stepwell.open(path, mode="r", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [False, True])
def test_processes_that_save_together(tmp_path: pathlib.Path, local: bool) -> None:
    root = tmp_path / "store"
    roots = machines(tmp_path, 0, 1) if local else root
    leaves = {str(process): ["rows", "both", "whole", "prime"] for process in range(2)}
    disks = {"disks": "local"} if local else {}
    said = run(roots, [["open", {"on_nonfinite": "error", **disks}],
                       ["save", {"step": 1, "leaves": leaves}],
                       ["save", {"step": 2, "leaves": leaves, "content": float("nan")}],
                       ["save", {"step": 3, "leaves": leaves}],
                       ["steps", {}], ["close", {}]])
    for process in said:
        assert process.status == 0, process.output[-2000:]
        assert "NaN or infinite" in json.dumps(process.lines[2]), process.lines[2]
        assert process.gave(4) == [1, 3]
    if local:
        return
    with stepwell.open(root, "r") as store:
        for name in ("rows", "both", "whole", "prime"):
            check(of(store, 3, f"params/{name}"), values(name, 3))


# ---- a state that has stopped changing ----------------------------------------------------------


STALE = "was an old state saved?"


def test_a_stale_state(path: pathlib.Path, lines: Any) -> None:
    with stepwell.open(path) as store:
        trained = {"w": jnp.zeros(100), "count": 0}
        for step in range(7):
            trained = {"w": trained["w"] + 1, "count": step}
            store.save(step, trained).result()
        assert STALE not in lines(STALE, 0)
        store.save(7, {"w": trained["w"], "count": 7}).result()
        said = lines(STALE)
        assert "step 7: no array of item 'state' has changed since step 6, although 1 has" in said
        store.save(8, {"w": trained["w"], "count": 8}).result()
        store.save(9, {"w": trained["w"] + 1, "count": 9}).result()
    assert lines(STALE).count(STALE) == 1


def test_no_stale_state(path: pathlib.Path, lines: Any) -> None:
    """A constant tree, frozen leaves, a step that is replaced, a training that goes on with a leaf
    of another shape."""
    with stepwell.open(path) as store:
        frozen, tree = np.arange(50), {"w": np.ones(9)}
        for step in range(9):
            trained = {"w": np.full(9, step), "frozen": frozen}
            store.save(step, items={"state": trained, "eval": tree}).result()
        store.save(8, items={"state": trained, "eval": tree}, if_exists="replace").result()
    with stepwell.open(path.with_name("another")) as store:
        for step in range(8):
            trained = {"w": np.full(9, min(step, 6)), "head": np.ones(max(step, 6))}
            store.save(step, trained).result()
    assert STALE not in lines(STALE, 0.1)
