# SPDX-License-Identifier: Apache-2.0
"""Saves of arrays on accelerators: what of them is on the host, and when. JAX's memory kinds."""

from __future__ import annotations

import gc
import pathlib
import signal
import threading
import time
from typing import Any

import device_arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_arrays import DeviceArray, Meter

import stepwell
from stepwell._distributed import process_slice
from stepwell._pytree import digest, host_copies, sharding
from stepwell._runtime import gc_pause
from stepwell._stepwell import RowTag

_MIB = 1 << 20


@pytest.fixture(autouse=True)
def _devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thing that only JAX can do with its own arrays."""
    for module in (host_copies, digest):
        monkeypatch.setattr(module, "detached", device_arrays.detached)


@pytest.fixture
def meter() -> Meter:
    return Meter()


def _values(number: int, mib: float = 1) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(int(mib * _MIB) // 4).astype(np.float32)


def _state(meter: Meter, count: int, step: int = 0) -> dict[str, DeviceArray]:
    """Names descend, so the tree has them in another order than the engine."""
    return {f"w{i:02}": DeviceArray(f"w{i:02}", _values(100 * step + i), meter)
            for i in reversed(range(count))}


def _check(store: stepwell.Store, count: int, step: int) -> None:
    loaded = store.load(step)
    assert sorted(loaded) == [f"w{i:02}" for i in range(count)]
    for i in range(count):
        np.testing.assert_array_equal(loaded[f"w{i:02}"], _values(100 * step + i))


def test_copies_are_made_in_order_within_the_window(tmp_path: pathlib.Path, meter: Meter) -> None:
    with stepwell.open(tmp_path / "run", device_window_bytes=4 * _MIB) as store:
        state = _state(meter, 20)
        handle = store.save(0, state)
        assert meter.there_bytes == 0  # all of them are in the staging memory, and gone
        handle.result()
        assert meter.order == meter.copied == sorted(state)
        assert meter.peak_bytes == 4 * _MIB
        _check(store, 20, 0)


def test_the_window_has_256_mib(tmp_path: pathlib.Path, meter: Meter) -> None:
    with stepwell.open(tmp_path / "run") as store:
        values = np.zeros(32 * _MIB, np.uint8)
        store.save(0, {f"w{i}": DeviceArray(f"w{i}", values, meter) for i in range(12)}).result()
        assert meter.peak_bytes == 256 * _MIB


def test_a_shard_larger_than_the_window_is_copied_alone(tmp_path: pathlib.Path, meter: Meter
                                                        ) -> None:
    state = _state(meter, 8)
    state["w04"] = DeviceArray("w04", _values(4, 9), meter)
    with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
        store.save(0, state).result()
        assert meter.peak_bytes == 9 * _MIB
        np.testing.assert_array_equal(store.load(0, "w04"), _values(4, 9))


def test_sharded_arrays_are_copied_shard_by_shard(tmp_path: pathlib.Path, meter: Meter) -> None:
    whole = _values(1, 32).reshape(1024, -1)
    with stepwell.open(tmp_path / "run", device_window_bytes=8 * _MIB) as store:
        store.save(0, {"w": DeviceArray("w", whole, meter, 8)}).result()
        assert meter.order == [f"w.{i}" for i in range(8)]
        assert meter.peak_bytes == 8 * _MIB
        np.testing.assert_array_equal(store.load(0)["w"], whole)
        assert store.tree(0)["w"].shape == whole.shape


def test_of_what_is_saved_again_nothing_is_copied(tmp_path: pathlib.Path, meter: Meter) -> None:
    state = _state(meter, 6)
    with stepwell.open(tmp_path / "run") as store:
        store.save(0, state).result()
        state["w03"] = DeviceArray("w03", _values(3), meter)
        store.save(1, state).result()
        assert meter.order == [*sorted(state), "w03"]
        np.testing.assert_array_equal(store.load(1, "w05"), _values(5))


def test_a_mixed_state(tmp_path: pathlib.Path, meter: Meter) -> None:
    scalar = np.asarray(2.5, np.float32)
    state = {"device": DeviceArray("device", _values(1), meter), "cpu": jnp.arange(1000.0),
             "numpy": _values(2), "empty": DeviceArray("empty", np.empty((0, 3), np.int8), meter),
             "scalar": DeviceArray("scalar", scalar, meter), "step": 7}
    with stepwell.open(tmp_path / "run") as store:
        store.save(0, state).result()
        loaded = store.load(0)
        np.testing.assert_array_equal(loaded["device"], _values(1))
        np.testing.assert_array_equal(loaded["cpu"], np.arange(1000.0))
        np.testing.assert_array_equal(loaded["numpy"], _values(2))
        assert loaded["empty"].shape == (0, 3) and loaded["scalar"] == 2.5 and loaded["step"] == 7
        assert store.digest(0) == stepwell.digest(state)


def test_arrays_may_be_donated_when_save_has_returned(tmp_path: pathlib.Path, meter: Meter) -> None:
    state = _state(meter, 12)
    with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
        handle = store.save(0, state)
        for array in state.values():
            array.delete()
        handle.result()
        _check(store, 12, 0)


def test_held_arrays_are_copied_behind_save(tmp_path: pathlib.Path, meter: Meter) -> None:
    with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
        meter.may_copy.clear()
        numpy = _values(12)
        handle = store.save(0, {**_state(meter, 12), "w12": numpy}, hold=True)
        numpy[:] = 0  # NumPy's are copied before
        assert not meter.copied and not handle.done()
        meter.may_copy.set()
        handle.result()
        _check(store, 13, 0)


def test_held_saves_take_the_window_one_after_the_other(tmp_path: pathlib.Path, meter: Meter
                                                        ) -> None:
    with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
        meter.may_copy.clear()
        handles = [store.save(step, _state(meter, 6, step), hold=True) for step in range(3)]
        meter.may_copy.set()
        for handle in handles:
            handle.result()
        assert meter.peak_bytes == 2 * _MIB
        for step in range(3):
            _check(store, 6, step)


def test_an_array_that_is_donated_while_it_is_held_is_an_error(tmp_path: pathlib.Path, meter: Meter
                                                               ) -> None:
    with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
        store.save(0, _state(meter, 6)).result()
        meter.may_copy.clear()
        state = _state(meter, 6, 1)
        handle = store.save(1, state, hold=True)
        state["w04"].delete()
        meter.may_copy.set()
        with pytest.raises(stepwell.Error, match="leaf 'w04': cannot be copied from its device: "
                                                 "RuntimeError: Array has been deleted"):
            handle.result()
        assert store.steps() == [0] and meter.there_bytes == 0
        store.save(1, _state(meter, 6, 1)).result()
        _check(store, 6, 0)
        _check(store, 6, 1)


def test_an_error_of_a_copy_is_raised_by_save(tmp_path: pathlib.Path, meter: Meter) -> None:
    def fail(name: str) -> None:
        if name == "w04":
            raise OSError("the device fell off the bus")

    with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
        store.save(0, _state(meter, 8)).result()
        meter.on_copy = fail
        with pytest.raises(OSError, match="the device fell off the bus") as raised:
            store.save(1, _state(meter, 8, 1))
        assert "leaf 'w04': cannot be copied from its device" in raised.value.__notes__[0]
        del raised  # its traceback has the array
        meter.on_copy = lambda name: None
        assert store.steps() == [0] and meter.there_bytes == 0
        store.save(1, _state(meter, 8, 1)).result()
        store.wait()  # the error was told once
        _check(store, 8, 1)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("has no text")


@pytest.mark.parametrize(("hold", "kind"), [(False, Mute), (True, stepwell.Error)])
def test_an_error_of_a_copy_may_have_no_text(tmp_path: pathlib.Path, meter: Meter, hold: bool,
                                             kind: type[Exception]) -> None:
    def fail(name: str) -> None:
        raise Mute

    with stepwell.open(tmp_path / "run") as store:
        meter.on_copy = fail
        with pytest.raises(kind):
            store.save(0, _state(meter, 3), hold=hold).result()
        meter.on_copy = lambda name: None
        store.save(0, _state(meter, 3)).result()
        _check(store, 3, 0)


def test_a_store_in_a_cycle_is_closed_by_a_collection_on_the_thread_of_its_copies(
        tmp_path: pathlib.Path, meter: Meter, capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        cycle: list[Any] = [stepwell.open(tmp_path / "run")]
        cycle.append(cycle)
        cycle[0].save(0, _state(meter, 6), hold=True)

    meter.may_copy.clear()
    meter.on_copy = lambda name: gc.collect() if name == "w02" else None
    gc.collect()
    with gc_pause.paused():
        run()
        meter.may_copy.set()
        for _ in range(1000):
            try:
                store = stepwell.open(tmp_path / "run")
                break
            except stepwell.LockedError:
                time.sleep(0.01)
    with store:
        _check(store, 6, 0)
    assert not capfd.readouterr().err


def test_deleted_arrays_are_refused(tmp_path: pathlib.Path, meter: Meter) -> None:
    state = _state(meter, 3)
    state["w01"].delete()
    with stepwell.open(tmp_path / "run") as store:
        with pytest.raises(stepwell.UnsupportedLeafError,
                           match="w01: is a jax.Array that was deleted or donated"):
            store.save(0, state)
        assert meter.order == []


@pytest.mark.parametrize("kind", [BaseException, Exception])
def test_a_signals_handler_ends_a_copy(tmp_path: pathlib.Path, meter: Meter,
                                       kind: type[BaseException]) -> None:
    def handler(*_: Any) -> None:
        raise kind('stop')

    meter.on_copy = lambda name: signal.raise_signal(signal.SIGUSR1) if name == "w04" else None
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB) as store:
            with pytest.raises(kind, match="^stop"):
                store.save(0, _state(meter, 8))
            meter.on_copy = lambda name: None
            assert store.steps() == [] and meter.there_bytes == 0
            store.save(0, _state(meter, 8)).result()
            _check(store, 8, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_close_waits_for_held_arrays(tmp_path: pathlib.Path, meter: Meter) -> None:
    store = stepwell.open(tmp_path / "run", device_window_bytes=2 * _MIB)
    meter.may_copy.clear()
    store.save(0, _state(meter, 6), hold=True)
    threading.Timer(0.05, meter.may_copy.set).start()
    store.close()
    assert "stepwell-copies" not in pathlib.Path("/proc/self/comm").read_text()
    names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    assert "stepwell-copies" not in names
    with stepwell.open(tmp_path / "run", mode="r") as store:
        _check(store, 6, 0)


def test_a_digest_has_few_arrays_on_the_host(meter: Meter) -> None:
    state = _state(meter, 40)
    assert stepwell.digest(state) == stepwell.digest({
        f"w{i:02}": _values(i) for i in range(40)})
    assert meter.peak_bytes <= 8 * _MIB and meter.there_bytes == 0


def test_a_process_of_several_has_few_arrays_on_the_host(meter: Meter) -> None:
    part = process_slice.part_of({"state": _state(meter, 12)}, 0, None)
    rows = [row for row in part.rows[0].rows if row.tag == RowTag.SHARDS]
    assert len(rows) == 12 and all(row.far for row in rows)
    assert meter.peak_bytes == _MIB and meter.there_bytes == 0  # one after the other, to compare


def test_arguments(tmp_path: pathlib.Path) -> None:
    with pytest.raises(stepwell.InvalidArgumentError, match="device_window_bytes must be an int"):
        stepwell.open(tmp_path / "run", device_window_bytes=0)


def test_jax_keeps_no_copy_that_was_made_of_a_detached_array(monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    """Of an array of 4-bit integers JAX makes a copy on CPU devices, too, one byte for each."""
    array = jnp.ones((64 * _MIB,), jnp.int4).block_until_ready()
    before = _resident_bytes()
    copies = host_copies.HostCopies()
    monkeypatch.setattr(host_copies, "detached", sharding.detached)
    copies.add(array.addressable_data(0))
    copies.start([0])
    nbytes = copies.wait(0).nbytes  # pytest would keep the array of an assertion
    copied = _resident_bytes()
    assert nbytes == 64 * _MIB
    assert copied - before > 50 * _MIB
    copies.release([0])
    for _ in range(500):  # a thread of JAX's lets go of it first
        if _resident_bytes() - before < 10 * _MIB:
            break
        time.sleep(0.01)
        copies.release([])
    assert _resident_bytes() - before < 10 * _MIB
    array.delete()


def _resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


# ---- JAX's own arrays, as if they were on an accelerator ---------------------------------------

_ELSEWHERE = """
import pathlib, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import stepwell
from stepwell._pytree import tree

class Elsewhere(tree.ShardingInfo):
    def __init__(self, sharding):
        super().__init__(sharding)
        self.cpu = self.direct = False

tree.ShardingInfo = Elsewhere
mesh = jax.make_mesh((4, 2), ("x", "y"))

def state(seed):
    values = np.random.default_rng(seed).standard_normal((512, 256)).astype(np.float32)
    put = lambda array, *spec: jax.device_put(array, NamedSharding(mesh, P(*spec)))
    return {"one": jnp.asarray(values), "rows": put(values, "x"), "columns": put(values, None, "y"),
            "both": put(values, "y", "x"), "replicated": put(values), "scalar": jnp.float32(seed),
            "half": put(values.astype(jnp.bfloat16), "x"), "bits": put(values > 0, ("x", "y")),
            "int4": put(jnp.asarray(values * 2, jnp.int4), "x"), "empty": jnp.zeros((0, 3)),
            "key": jax.random.key(seed), "odd": jnp.asarray(values[:37, :11].T),
            "keys": put(jax.random.split(jax.random.key(seed), 8), "x"),
            "weak": jnp.asarray(2.5)}

def raw(leaf):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)

def check(store, step):
    wanted = state(step)
    loaded = store.load(step, like=wanted)
    for name, leaf in wanted.items():
        assert loaded[name].dtype == leaf.dtype and loaded[name].sharding == leaf.sharding, name
        np.testing.assert_array_equal(raw(loaded[name]), raw(leaf), err_msg=name)

with stepwell.open(sys.argv[1], device_window_bytes=1 << 18) as store:
    for hold in (False, True):
        store.save(int(hold), state(int(hold)), hold=hold).result()
        check(store, int(hold))
    assert store.digest(1) == stepwell.digest(state(1))
    assert store.verify(1, against=state(1)).ok
    saved = 0
    for step in range(2, 30):
        held = state(step)
        handle = store.save(step, held, hold=True)
        held["both"].delete()
        try:
            handle.result()
        except stepwell.Error as error:
            assert "leaf 'both': cannot be copied from its device" in str(error), error
            assert step not in store.steps()
        else:
            check(store, step)

def high_mib():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) >> 10

with stepwell.open(sys.argv[1], device_window_bytes=32 << 20, staging_bytes=32 << 20) as store:
    # Of 4-bit integers JAX makes copies here, too, of a byte for each.
    large = {str(i): jnp.full((32 << 20,), i, jnp.int4).block_until_ready() for i in range(7)}
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets what was
    before = high_mib()
    store.save(100, large).result()
    assert high_mib() - before < 140, (before, high_mib())  # of 224, beside the staging memory
    assert bool((store.load(100)["6"] == 6).all())
print("alike")
"""


def test_arrays_of_jax_itself(tmp_path: pathlib.Path, run_jax: Any) -> None:
    status, out, err = run_jax(_ELSEWHERE, tmp_path / "store",
                               XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert status == 0 and out.strip().endswith("alike"), err


# ---- memory kinds -------------------------------------------------------------------------------

_KINDS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding
import stepwell

devices = jax.devices()
kinds = [memory.kind for memory in devices[0].addressable_memories()]
assert {"device", "pinned_host", "unpinned_host"} <= set(kinds), kinds
mesh = jax.make_mesh((len(devices),), ("x",))
alone = jax.sharding.Mesh(np.array(devices[-1:]), ("x",))
values = np.arange(32.0, dtype=np.float32).reshape(8, 4)

def shardings(kind):
    yield "one", SingleDeviceSharding(devices[-1], memory_kind=kind)
    yield "alone", NamedSharding(alone, P("x"), memory_kind=kind)
    yield "rows", NamedSharding(mesh, P("x"), memory_kind=kind)
    yield "replicated", NamedSharding(mesh, P(), memory_kind=kind)

state = {kind: {name: jax.device_put(values, sharding) for name, sharding in shardings(kind)}
         for kind in kinds}
keys = {kind: jax.device_put(jax.random.split(jax.random.key(0), 8),
                             NamedSharding(mesh, P("x"), memory_kind=kind)) for kind in kinds}
halves = {kind: jax.device_put(jnp.ones((8, 4), jnp.bfloat16),
                               NamedSharding(mesh, P("x"), memory_kind=kind)) for kind in kinds}
state = {"arrays": state, "keys": keys, "halves": halves}

def check(loaded, wanted, mesh_of_one=True):
    for path, leaf in jax.tree.leaves_with_path(wanted):
        got = loaded
        for key in path:
            got = got[key.key]
        if mesh_of_one or len(devices) > 1:
            assert got.sharding == leaf.sharding, (path, got.sharding, leaf.sharding)
        assert got.sharding.memory_kind == leaf.sharding.memory_kind, (path, got.sharding)
        raw = jax.random.key_data if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else (
            lambda array: array)
        np.testing.assert_array_equal(np.asarray(raw(got)), np.asarray(raw(leaf)))

with stepwell.open(sys.argv[1]) as store:
    store.save(0, state).result()
    check(store.load(0, like=state), state)
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    check(store.load(0, like=abstract), state)
    check(store.load(0, as_="jax"), state, mesh_of_one=False)
    # Into another kind than the one that was saved.
    turned = dict(zip(kinds, kinds[1:] + kinds[:1], strict=True))
    other = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype,
        sharding=leaf.sharding.with_memory_kind(turned[leaf.sharding.memory_kind])), state)
    check(store.load(0, like=other), jax.tree.map(
        lambda leaf, to: jax.device_put(leaf, to.sharding), state, other))
print("alike")
"""


@pytest.mark.parametrize("devices", [1, 8])
def test_memory_kinds_come_back(tmp_path: pathlib.Path, run_jax: Any, devices: int) -> None:
    status, out, err = run_jax(_KINDS, tmp_path / "store",
                               XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}")
    assert status == 0 and out.strip().endswith("alike"), err
