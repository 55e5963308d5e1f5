# SPDX-License-Identifier: Apache-2.0
"""Exports as Orbax and TensorStore themselves read them, bit for bit."""

import os
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import stepwell
import tensorstore as ts
from orbax.checkpoint import v1 as ocp_v1

MODES = ["link", "copy"]


def state() -> dict[str, object]:
    rng = np.random.default_rng(7)
    return {
        "w": rng.standard_normal((300, 1100)).astype(np.float32),  # several chunks, uneven edges
        "zeros": np.zeros((600, 700), np.float32),  # compressed
        "small": {"bf16": np.arange(7).astype(ml_dtypes.bfloat16), "i8": np.int8([[1, -2]])},
        "layers": [np.arange(3, dtype=np.int64), (np.float64(2.5), np.array(True))],
        "count": 7,
        "rate": 1e-3,
        "flag": True,
        "name": "adam",
        "text": "ä long one " * 1000,
        "nothing": None,
        "empty": {"d": {}, "l": []},
    }


def save(path: pathlib.Path, tree: object, **keywords: object) -> stepwell.Store:
    store = stepwell.open(path)
    store.save(3, tree, **keywords).result()
    return store


def same(stored: object, loaded: object) -> None:
    """Leaf by leaf: values, dtypes and shapes. Tuples come back as lists, NumPy scalars as Python
    numbers."""
    if isinstance(stored, dict):
        assert isinstance(loaded, dict) and stored.keys() == loaded.keys()
        for key in stored:
            same(stored[key], loaded[key])
    elif isinstance(stored, (list, tuple)):
        assert isinstance(loaded, (list, tuple)) and len(stored) == len(loaded)
        for one, other in zip(stored, loaded, strict=True):
            same(one, other)
    elif isinstance(stored, (np.ndarray, jax.Array)):
        one, other = np.asarray(stored), np.asarray(loaded)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    else:
        assert stored == loaded
        assert type(loaded) is type(stored.item() if isinstance(stored, np.generic) else stored)


@pytest.mark.parametrize("zarr", [3, 2])
@pytest.mark.parametrize("mode", MODES)
def test_orbax_v1_loads_it(tmp_path: pathlib.Path, mode: str, zarr: int) -> None:
    tree = state()
    with save(tmp_path / "s", tree, metadata={"note": "ä"}, metrics={"loss": 0.5}) as store:
        report = store.export(3, tmp_path / "x", mode=mode, zarr=zarr)
    assert report.mode == mode and report.path == str(tmp_path / "x")
    assert report.leaves == 12 and not report.skipped
    same(tree, ocp_v1.load(tmp_path / "x"))
    if mode == "copy":
        assert report.apparent_bytes < 1.1 * report.step_bytes + 100_000


def test_orbax_v1_describes_it(tmp_path: pathlib.Path) -> None:
    """Not of a tree with a bool: Orbax v1 has no words for one, its own neither, and while it says
    so it closes an event loop that answers to its reads still come to."""
    tree = {name: leaf for name, leaf in state().items() if not isinstance(leaf, bool)}
    with save(tmp_path / "s", tree, metadata={"note": "ä"}) as store:
        store.export(3, tmp_path / "x")
    found = ocp_v1.metadata(tmp_path / "x")
    assert found.custom_metadata == {"note": "ä"}
    assert (found.metadata["w"].shape, found.metadata["w"].dtype) == ((300, 1100), np.float32)


@pytest.mark.parametrize("zarr", [3, 2])
@pytest.mark.parametrize("mode", MODES)
def test_orbax_v0_manager_restores_it(tmp_path: pathlib.Path, mode: str, zarr: int) -> None:
    tree = state()
    with save(tmp_path / "s", tree, metrics={"loss": 0.5}) as store:
        store.export(3, tmp_path / "root", mode=mode, zarr=zarr, layout="v0",
                     unnamed_default=True)
    with ocp_v0.CheckpointManager(tmp_path / "root") as manager:
        assert manager.latest_step() == 3
        same(tree, manager.restore(3, args=ocp_v0.args.StandardRestore()))
        assert manager.metrics(3) == {"loss": 0.5}


@pytest.mark.parametrize("zarr", [3, 2])
@pytest.mark.parametrize("mode", MODES)
def test_tensorstore_reads_its_arrays(tmp_path: pathlib.Path, mode: str, zarr: int) -> None:
    tree = state()
    with save(tmp_path / "s", tree) as store:
        store.export(3, tmp_path / "x", mode=mode, zarr=zarr)
    for name, array in {"w": tree["w"], "zeros": tree["zeros"],
                        "small.bf16": tree["small"]["bf16"]}.items():
        kvstore = {"driver": "ocdbt", "base": f"file://{tmp_path}/x/state/", "path": name + "/"}
        driver = "zarr3" if zarr == 3 else "zarr"
        read = ts.open({"driver": driver, "kvstore": kvstore}).result().read().result()
        assert read.dtype == array.dtype and read.tobytes() == array.tobytes()


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_jax_arrays_come_back_as_such(tmp_path: pathlib.Path) -> None:
    tree = {"w": jnp.arange(12.0).reshape(3, 4), "key": jax.random.key(5), "n": np.arange(3)}
    with save(tmp_path / "s", tree) as store:
        assert store.export(3, tmp_path / "jax").leaf_type == "jax"
        assert store.export(3, tmp_path / "numpy", leaves="numpy").leaf_type == "numpy"
    loaded = ocp_v1.load(tmp_path / "jax")
    assert isinstance(loaded["w"], jax.Array) and isinstance(loaded["n"], np.ndarray)
    same(tree["w"], loaded["w"])
    assert jax.random.key_impl(loaded["key"]) == jax.random.key_impl(tree["key"])
    same(jax.random.key_data(tree["key"]), jax.random.key_data(loaded["key"]))
    plain = ocp_v1.load(tmp_path / "numpy")
    assert isinstance(plain["w"], np.ndarray)
    assert plain["key"].dtype == tree["key"].dtype  # NumPy has no keys: still one of JAX's
    same(jax.random.key_data(tree["key"]), jax.random.key_data(plain["key"]))


def test_what_orbax_cannot_hold(tmp_path: pathlib.Path) -> None:
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3)
    nibbles = np.arange(16).astype(ml_dtypes.uint4)
    tree = {"f8": every, "u4": nibbles, "z": 1 + 2j, "b": b"x", "big": 2**64, "ok": np.ones(3),
            "empty": np.zeros((0, 3), np.int32)}
    with save(tmp_path / "s", tree) as store:
        with pytest.raises(stepwell.InvalidArgumentError) as raised:
            store.export(3, tmp_path / "x")
        for name in ("f8", "u4", "z", "b", "big"):
            assert f"state/{name}: " in str(raised.value)
        with pytest.raises(stepwell.InvalidArgumentError, match="2 parts"):
            store.export(3, tmp_path / "x", on_unsupported="widen")
        assert sorted(os.listdir(tmp_path)) == ["s"]
        report = store.export(3, tmp_path / "skipped", on_unsupported="skip")
        assert len(report.skipped) == 5
        same({"ok": tree["ok"], "empty": tree["empty"]}, ocp_v1.load(tmp_path / "skipped"))
        store.save(4, {"f8": every, "u4": nibbles, "z": 1 + 2j}).result()
        for mode in MODES:
            report = store.export(4, tmp_path / mode, on_unsupported="widen", mode=mode)
            assert [leaf.path for leaf in report.widened] == ["state/f8", "state/u4", "state/z"]
            loaded = ocp_v1.load(tmp_path / mode)
            same(every.astype(np.float16), loaded["f8"])
            same(nibbles.astype(np.uint8), loaded["u4"])
            same(np.array(1 + 2j), loaded["z"])


def test_a_subtree_and_a_leaf(tmp_path: pathlib.Path) -> None:
    tree = state()
    with save(tmp_path / "s", tree) as store:
        assert store.export(3, tmp_path / "small", path="small").mode != "link"
        store.export(3, tmp_path / "text", path="layers/1")
        store.export(3, tmp_path / "leaf", path="w")
        with pytest.raises(stepwell.InvalidArgumentError, match="glob"):
            store.export(3, tmp_path / "no", path="*")
        with pytest.raises(stepwell.PathNotFoundError):
            store.export(3, tmp_path / "no", path="nowhere")
    same(tree["small"], ocp_v1.load(tmp_path / "small"))
    same(tree["layers"][1], ocp_v1.load(tmp_path / "text"))
    same(tree["w"], ocp_v1.load(tmp_path / "leaf"))


# A load that fails closes its event loop while answers to other reads still come to it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_flipped_bit_is_refused(tmp_path: pathlib.Path) -> None:
    with save(tmp_path / "s", {"w": np.arange(50_000, dtype=np.float32)}) as store:
        store.export(3, tmp_path / "x", mode="copy")
    data = tmp_path / "x/state/d/chunks"
    content = bytearray(data.read_bytes())
    content[1000] ^= 4
    data.write_bytes(content)
    with pytest.raises(Exception, match="[Dd]igest"):
        ocp_v1.load(tmp_path / "x")


def test_errors_leave_nothing(tmp_path: pathlib.Path) -> None:
    with save(tmp_path / "s", {"w": np.ones(3)}) as store:
        (tmp_path / "there").mkdir()
        with pytest.raises(FileExistsError, match="there"):
            store.export(3, tmp_path / "there")
        with pytest.raises(stepwell.StepNotFoundError):
            store.export(4, tmp_path / "x")
        with pytest.raises(stepwell.Error, match="another file system"):
            store.export(3, f"/dev/shm/stepwell-export-{os.getpid()}", mode="link")
        for option in ({"mode": "move"}, {"zarr": 4}, {"layout": "v2"}, {"leaves": "torch"},
                       {"on_unsupported": "ignore"}):
            with pytest.raises(stepwell.InvalidArgumentError):
                store.export(3, tmp_path / "x", **option)
        assert sorted(os.listdir(tmp_path)) == ["s", "there"]
    assert not os.path.exists(f"/dev/shm/stepwell-export-{os.getpid()}")


@pytest.mark.parametrize("mode", MODES)
def test_other_users_may_read_it_if_told_so(tmp_path: pathlib.Path, mode: str) -> None:
    old = os.umask(0o077)
    try:
        with save(tmp_path / "s", state()) as store:
            closed = store.export(3, tmp_path / "closed", mode=mode)
            report = store.export(3, tmp_path / "open", mode=mode, file_mode=0o644)
            with pytest.raises(stepwell.InvalidArgumentError, match="0o644"):
                store.export(3, tmp_path / "never", file_mode=0)
    finally:
        os.umask(old)
    assert closed.mode == report.mode == mode
    assert (tmp_path / "closed").stat().st_mode & 0o077 == 0
    found = [tmp_path / "open", *(tmp_path / "open").rglob("*")]
    assert len(found) > 5
    for path in found:
        assert path.stat().st_mode & 0o077 == (0o055 if path.is_dir() else 0o044), path
    same(state(), ocp_v1.load(tmp_path / "open"))


def test_progress_is_told_and_may_end_it(tmp_path: pathlib.Path) -> None:
    told: list[tuple[int, int]] = []
    with save(tmp_path / "s", state()) as store:
        store.export(3, tmp_path / "x", mode="copy",
                     progress=lambda done, total: told.append((done, total)))
        assert told and told[-1][0] == told[-1][1] > 1_000_000
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        told.clear()
        store.export(3, tmp_path / "x.npz", to="npz", on_unsupported="skip",
                     progress=lambda done, total: told.append((done, total)))
        assert told and told[-1][0] == told[-1][1]
