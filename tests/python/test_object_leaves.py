# SPDX-License-Identifier: Apache-2.0
"""Leaves that are objects: with get_state and set_state, and dataclasses that JAX does not know."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import equinox as eqx
import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepwell
from equality import same
from stepwell.compat import orbax_v1 as facade_v1


class Iterator:
    """Acts like a data iterator: a position in some state."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.calls = 0

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.calls += 1
        self.state = state


STATES = {
    "dict": {"epoch": 3, "files": ["a", "b"], "left": (1, 2.5), 7: None, "empty": {}},
    "list": [1, [True], b"\x00\xff"],
    "keys": {("a", 1): {True: 1}, None: {1.5: b""}},
    "bytes": b"{\"position\": 12}",
    "str": "shard 3",
    "int": 2**70,
    "none": None,
    "empty": {},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "arrays": {"x": np.ones(3), "scalar": np.float32(2.5)},
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_saved_and_set(store, name):
    store.save(1, {"data": Iterator(STATES[name]), "x": np.ones(2)}).result()
    assert same(store.load(1, "data"), STATES[name])  # as if it stood there itself
    fresh = Iterator("fresh")
    like = {"data": fresh, "x": np.zeros(2)}
    loaded = store.load(1, like=like)
    assert loaded["data"] is fresh and fresh.calls == 1
    assert same(fresh.state, STATES[name])
    assert store.load_or(like)[1] == 2


def test_an_object_may_be_the_state_itself_or_an_item(store):
    store.save(1, Iterator({"n": 1}), items={"data": Iterator([5])}).result()
    fresh = Iterator(None)
    assert store.load(1, "state", like=fresh) is fresh and fresh.state == {"n": 1}
    store.load(1, like={"state": fresh, "data": (other := Iterator(None))})
    assert (fresh.state, other.state, fresh.calls) == ({"n": 1}, [5], 2)


def test_arrays_of_a_state_come_back_as_numpy_and_keys_as_keys(store):
    store.save(1, Iterator({"x": jnp.arange(3), "key": jax.random.key(3)})).result()
    fresh = Iterator(None)
    store.load(1, like=fresh)
    assert type(fresh.state["x"]) is np.ndarray and fresh.state["x"].tolist() == [0, 1, 2]
    assert same(fresh.state["key"], jax.random.key(3))


def test_numpys_generator_and_grains_iterators_go_on_where_they_were(store):
    def make(seed: int = 0) -> dict[str, Any]:
        loader = grain.DataLoader(
            data_source=range(40), worker_count=0,
            sampler=grain.IndexSampler(40, grain.NoSharding(), shuffle=True, num_epochs=2, seed=1))
        dataset = grain.MapDataset.source(range(40)).shuffle(seed=3).to_iter_dataset()
        return {"random": np.random.RandomState(seed), "loader": iter(loader),
                "dataset": iter(dataset)}

    data = make()
    for _ in range(7):
        data["random"].rand(), next(data["loader"]), next(data["dataset"])
    store.save(1, data).result()
    rest = (data["random"].rand(5).tolist(), [int(next(data["loader"])) for _ in range(9)],
            [int(next(data["dataset"])) for _ in range(9)])
    loaded = store.load(1, like=make(5))
    assert rest == (loaded["random"].rand(5).tolist(),
                    [int(next(loaded["loader"])) for _ in range(9)],
                    [int(next(loaded["dataset"])) for _ in range(9)])


RANDOM = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("make", [np.random.Generator, lambda bits: bits], ids=["", "bits"])
def test_numpys_random_generators_are_saved_as_their_state(store, tmp_path, kind, make):
    def draw(generator: Any) -> list[int]:
        return [np.random.Generator(generator).bytes(3)] if generator is bits(generator) else [
            generator.standard_normal(), generator.integers(9), generator.bytes(3)]

    def bits(generator: Any) -> Any:
        return getattr(generator, "bit_generator", generator)

    saved, target = (make(getattr(np.random, kind)(seed)) for seed in (1, 2))
    draw(saved)
    stated = bits(saved).state
    store.save(1, {"random": saved, "x": np.ones(1)}).result()
    facade_v1.save(tmp_path / "v1", {"random": saved})
    rest = draw(saved)
    assert same(store.load(1, "random"), stated)
    assert store.load(1, "random/bit_generator") == kind
    assert store.load(1, like={"random": target, "x": np.zeros(1)})["random"] is target
    assert draw(target) == rest
    facade_v1.load(tmp_path / "v1", {"random": target})
    assert draw(target) == rest
    bits(target).state = store.load(1, "random")
    assert draw(target) == rest
    other = np.random.Generator(getattr(np.random, RANDOM[RANDOM.index(kind) - 1])(3))
    with pytest.raises(ValueError, match="state must be for") as caught:
        store.load(1, "random", like=other)
    assert "set_state of the Generator" in caught.value.__notes__[0]


def test_set_state_is_called_only_when_everything_was_loaded(store, monkeypatch):
    last = collections.OrderedDict(a=np.ones(1))  # it is built behind the others
    store.save(1, {"data": Iterator(1), "x": np.ones(2), "y": Iterator(2), "z": last}).result()
    fresh = {"data": Iterator(0), "x": np.zeros(3), "y": Iterator(0), "z": last}
    with pytest.raises(stepwell.MismatchError):
        store.load(1, like=fresh)
    fresh["x"] = np.zeros(2)

    def fails(*_: object) -> None:
        raise stepwell.CorruptionError("damaged")

    with monkeypatch.context() as patched:
        patched.setattr(stepwell._load.like, "read_slots", fails)
        with pytest.raises(stepwell.CorruptionError):
            store.load(1, like=fresh)
    with monkeypatch.context() as patched:
        patched.setattr(stepwell._load.plans, "rebuild", fails)
        with pytest.raises(stepwell.CorruptionError):
            store.load(1, like=fresh)
    assert (fresh["data"].calls, fresh["y"].calls) == (0, 0)
    store.load(1, like=fresh)
    assert (fresh["data"].state, fresh["y"].state) == (1, 2)


def test_a_state_that_an_object_refuses_says_where(store):
    class Strict(Iterator):
        def set_state(self, state: Any) -> None:
            raise ValueError("another data set")

    store.save(1, {"data": Iterator(1)}).result()
    with pytest.raises(ValueError, match="another data set") as caught:
        store.load(1, like={"data": Strict(0)})
    assert caught.value.__notes__ == [
        "stepwell: set_state of the Strict at 'data' in `like` refused the stored state"]


def test_no_object_is_changed_where_one_refuses_its_state(store):
    generator = np.random.Generator(np.random.MT19937(1))
    store.save(1, {"a": Iterator(5), "b": Iterator(6), "random": generator}).result()
    fresh = {"a": Iterator(1), "b": Iterator(2), "random": np.random.default_rng(3)}
    before = fresh["random"].bit_generator.state
    with pytest.raises(ValueError, match="state must be for") as caught:
        store.load_or(fresh)
    assert "np.random.Generator(np.random.MT19937()) takes it" in caught.value.__notes__[0]
    assert (fresh["a"].state, fresh["b"].state) == (1, 2)
    assert same(fresh["random"].bit_generator.state, before)


def test_what_the_step_lacks_is_a_mismatch(store):
    store.save(1, {"x": 1}).result()
    wanted = "data: missing in the store, wanted the state of a test_object_leaves.Iterator"
    with pytest.raises(stepwell.MismatchError, match=wanted):
        store.load(1, like={"x": 0, "data": Iterator(0)})


@pytest.mark.parametrize("state", [object(), len, Iterator(1), {"x": object()}])
def test_a_state_that_is_not_data_is_refused(store, state):
    with pytest.raises(stepwell.UnsupportedLeafError, match="data(/x)?: is (a .*Iterator whose "
                                                            "get_state|of type builtins.object)"):
        store.save(1, {"data": Iterator(state)})


def test_state_of_an_object_in_an_equinox_module_is_saved(store):
    class Model(eqx.Module):
        weight: jax.Array
        data: Iterator

    store.save(1, Model(jnp.ones(3), Iterator({"n": 4}))).result()
    loaded = store.load(1, like=Model(jnp.zeros(3), fresh := Iterator(None)))
    assert loaded.data is fresh and fresh.state == {"n": 4}


# ---- dataclasses ----


@dataclasses.dataclass
class Inner:
    values: Any
    name: str = "inner"


@dataclasses.dataclass(frozen=True)
class Frozen:
    step: int
    inner: Inner
    rate: float = 0.5


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any
    schedule: Any = abs
    total: int = dataclasses.field(init=False, default=0)
    unset: int = dataclasses.field(init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: Any
    inner: Inner


@dataclasses.dataclass
class Checked:
    """Its __init__ and __post_init__ take and make what a load must not repeat."""

    x: Any
    scale: dataclasses.InitVar[int]
    scaled: Any = dataclasses.field(init=False)

    def __post_init__(self, scale: int) -> None:
        self.scaled = self.x * scale
        self.extra = "not a field"


def test_dataclasses_are_objects_by_field(store):
    slots = Slots(np.arange(3))
    slots.total = 12
    state = {"frozen": Frozen(7, Inner(np.arange(3.0), "n")), "slots": slots,
             "both": FrozenSlots(jnp.ones(2), Inner([1, 2])), "checked": Checked(np.ones(2), 3)}
    store.save(1, state).result()
    assert same(store.load(1, "frozen"),
                {"step": 7, "inner": {"values": np.arange(3.0), "name": "n"}, "rate": 0.5})
    assert same(store.load(1, "frozen/inner/values"), np.arange(3.0))
    like = {"frozen": Frozen(0, Inner(np.zeros(3), ""), 0.0), "slots": Slots(np.zeros(3, int), max),
            "both": FrozenSlots(jnp.zeros(2), Inner([0, 0])), "checked": Checked(np.zeros(2), 1)}
    before = like["slots"]
    loaded = store.load(1, like=like)
    assert [type(each) for each in loaded.values()] == [Frozen, Slots, FrozenSlots, Checked]
    assert same(dataclasses.asdict(loaded["frozen"]), dataclasses.asdict(state["frozen"]))
    assert same(loaded["slots"].x, slots.x)
    assert (loaded["slots"].total, loaded["slots"].schedule) == (12, max)  # code is that of `like`
    assert not hasattr(loaded["slots"], "unset")
    assert isinstance(loaded["both"].x, jax.Array) and loaded["both"].inner == Inner([1, 2])
    assert same(loaded["checked"].scaled, np.full(2, 3.0))
    assert loaded["checked"].extra == "not a field"
    assert loaded["slots"] is not before and before.total == 0  # `like` is as it was
    assert same(like["frozen"].inner.values, np.zeros(3))


def test_a_dataclass_loads_from_a_dict_and_names_what_differs(store):
    store.save(1, {"values": np.ones(2), "name": "n", "old": 1}).result()
    with pytest.raises(stepwell.MismatchError, match="old: stored int, not in `like`"):
        store.load(1, like=Inner(np.zeros(2)))
    store.save(2, {"values": np.ones(2), "name": "n"}).result()
    assert same(store.load(2, like=Inner(np.zeros(2))).values, np.ones(2))
    with pytest.raises(stepwell.MismatchError, match="rate: missing in the store, wanted float"):
        store.save(3, {"step": 1, "inner": Inner(None)}).result()
        store.load(3, like=Frozen(0, Inner(None)))


def test_a_dataclass_with_a_field_that_is_not_data_names_it(store):
    with pytest.raises(stepwell.UnsupportedLeafError, match="inner/values: is of type "
                                                            "builtins.object, which is neither"):
        store.save(1, Frozen(1, Inner(object())))
    assert len(store) == 0


def test_registered_dataclasses_stay_as_they_are(store):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Registered:
        x: Any
        note: Any = dataclasses.field(metadata={"static": True}, default=None)

    store.save(1, Registered(jnp.ones(2), object())).result()
    assert same(store.load(1), {"x": np.ones(2, np.float32)})
    note = object()
    assert store.load(1, like=Registered(jnp.zeros(2), note)).note is note


def test_dataclasses_without_jax(run_python, path):
    status, out, err = run_python("""
import dataclasses, sys, numpy as np, stepwell
@dataclasses.dataclass(frozen=True)
class State:
    step: int
    x: np.ndarray
with stepwell.open(sys.argv[1]) as store:
    store.save(1, {"a": [State(3, np.arange(4))]}).result()
    loaded = store.load(1, like={"a": [State(0, np.zeros(4, int))]})["a"][0]
    print(loaded, "jax" in sys.modules)
""", path)
    assert (status, out) == (0, "State(step=3, x=array([0, 1, 2, 3])) False\n"), err
