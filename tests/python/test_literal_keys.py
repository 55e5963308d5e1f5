# SPDX-License-Identifier: Apache-2.0
"""Dict keys that are neither str nor int64: stored as what they are, shown, addressed, restored."""

from __future__ import annotations

import enum
import os
import pathlib
import random
import subprocess
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equality import same
from flax.core import FrozenDict
from orbax import checkpoint as orbax_v0
from orbax.checkpoint import v1 as orbax_v1
from test_registered import WAYS

import stepwell
from stepwell.compat import flax, orbax_v1 as facade_v1
from stepwell._pytree.keys import key_of, literal_or_none


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 0


class Point(NamedTuple):
    x: Any
    y: Any


KEYS = [True, False, None, 1.5, -2.5e-300, 1e300, b"bytes\xff/*", b"", (), (1,), ("a", "b"),
        ("x/y", (1, None, True), 2.5, b"\x00"), ("θ", "\udcff"), 2**63, -(2**100), 0.25]
OTHERS = {Color.RED: "Color.RED", Color.BLUE: "Color.BLUE", (Color.RED, 1): "(Color.RED, 1)"}
TEXTS = [(True, "True"), (None, "None"), (1.5, "1.5"), (b"b", "b'b'"), (("a", 1), "('a', 1)"),
         (("a",), "('a',)"), (Color.RED, "Color.RED")]


def test_keys_come_back_as_they_were(round_trip: Any, store: stepwell.Store) -> None:
    tree = {"in": {key: number for number, key in enumerate(KEYS)},
            "d": {"True": 1, True: 2, 7: 3, "7": 4, "(1,)": 5, (1,): 6}}
    loaded = round_trip(tree)
    assert loaded == tree
    assert {type(key) for key in loaded["in"]} == {bool, type(None), float, bytes, tuple, int}
    for number, key in enumerate(KEYS):
        assert store.load(0, ("in", key)) == number
        assert store[0]["in"][(key,)] == number
        assert ("in", key) in store[0]
    for text in store.tree(0):
        if not text.startswith("d/"):
            assert store.load(0, text) == store[0][text]
    assert sorted(store[0]["in"][key] for key in store[0]["in"]) == list(range(len(KEYS)))
    with pytest.raises(stepwell.AmbiguousPathError, match=r"d/True \(item/key/literal key\)"):
        store.load(0, "d/True")
    assert (store.load(0, ("d", True)), store.load(0, ("d", "True"))) == (2, 1)
    assert store.load(0, ("d", (1,))) == 6


def test_paths_are_what_python_writes(store: stepwell.Store) -> None:
    store.save(0, {key: {"w": number} for number, (key, _) in enumerate(TEXTS)}).result()
    for number, (key, text) in enumerate(TEXTS):
        assert store.load(0, text) == {"w": number} and store.load(0, (key, "w")) == number
    assert store.load(0, "(*, 1)/w") == {"('a', 1)/w": 4}
    with pytest.raises(stepwell.PathNotFoundError, match=r"there are: \('a', 1\), .* None, True"):
        store.load(0, ("a", 2.5))


def test_members_of_enums(store: stepwell.Store) -> None:
    tree = {key: number for number, key in enumerate(OTHERS)} | {Level.LOW: 5}
    store.save(0, tree).result()
    assert store.load(0) == {**dict(zip(OTHERS.values(), range(3), strict=True)), 0: 5}
    loaded = store.load(0, like=dict.fromkeys(tree, 0))
    assert loaded == tree and list(map(type, loaded)) == list(map(type, tree))


def test_numpys_scalars_and_namedtuples_are_what_they_equal(store: stepwell.Store) -> None:
    tree = {np.bool_(True): 1, np.float32(0.5): 2, Point(np.int64(1), np.str_("a")): 3,
            np.uint64(2**64 - 1): 4, -0.0: 5}
    store.save(0, tree).result()
    assert store.load(0) == {True: 1, 0.5: 2, (1, "a"): 3, 2**64 - 1: 4, 0.0: 5}
    same(store.load(0, like=tree), tree)


class Strange(enum.Flag):
    A = 1
    B = 2


BAD = [frozenset({1}), float("nan"), float("inf"), 1j, (1, frozenset()), 10**5000, object,
       range(3), Strange(0)]


@pytest.mark.parametrize("key", BAD, ids=lambda key: type(key).__name__)
@pytest.mark.parametrize("wrap", [dict, FrozenDict])
def test_a_key_that_cannot_be_stored_is_named_with_its_place(
        store: stepwell.Store, tmp_path: pathlib.Path, key: Any, wrap: Any) -> None:
    tree = {"a": [wrap({key: 1})], "ok": 1}
    words = rf"a/0: has a key of type {type(key).__name__} \(.*keys are str, int, bool"
    with pytest.raises(stepwell.UnsupportedLeafError, match=words):
        store.save(1, tree)
    with pytest.raises(stepwell.UnsupportedLeafError, match=words):
        store.save(1, {"a": [wrap({key: 1})]}["a"][0], items={"ok": 1, "a": [wrap({key: 1})]})
    store.save(0, {"a": [{"x": 1}], "ok": 1}).result()
    with pytest.raises(stepwell.UnsupportedLeafError, match=words):
        store.load(0, like=tree)
    with pytest.raises(stepwell.UnsupportedLeafError, match=f"new/{words}"):
        store.load(0, like={"new": tree})  # where nothing is stored
    facade_v1.save(tmp_path / "v1", {"a": [{"x": 1}], "ok": 1})
    with pytest.raises(TypeError, match="a/0 has a key of type"):
        facade_v1.load(tmp_path / "v1", tree)
    with pytest.raises(ValueError, match="is no key that a dict may have|4300 digits"):
        store.load(0, ("a", key))


def test_two_keys_with_one_text(store: stepwell.Store) -> None:
    other = enum.Enum("Color", "RED")
    with pytest.raises(stepwell.InvalidArgumentError, match="'in/Color.RED': there are two leaves"):
        store.save(0, {"in": {Color.RED: 1, other.RED: 2}})


def test_texts_and_keys_are_one_to_one() -> None:
    chance = random.Random(3)

    def key(depth: int) -> Any:
        if depth and chance.random() < 0.4:
            return tuple(key(depth - 1) for _ in range(chance.randrange(4)))
        return chance.choice([True, None, chance.random(), -chance.random() * 1e-9, b"'\"\\\n\xff",
                              "'", '"', "\\'", "\n\x00", "é\u200b", "True", "1", 0, -7, 2**70, ""])

    for _ in range(3000):
        made = (key(3),)
        text = literal_or_none(made)
        assert text is not None
        back = key_of(text)
        assert back == made and literal_or_none(back) == text and repr(back) == repr(made)
    for text in ["(" * 9999, "[1]", "{}", "1_0", "(1,2)", " True", "nan", "f()", "x", "", "'", "1j",
                 "(1, [2])", "9" * 9999, "\x00", "{1}", "-" * 5000 + "1"]:
        assert key_of(text) == text


def hmc_state(value: float) -> Any:
    """With what NumPyro's have: mass matrices by the names of sites."""
    return Point({("mu", "tau"): jnp.full((2, 2), value), ("theta",): jnp.full(3, value)},
                 jax.random.PRNGKey(int(value)))


def multi_transform(value: float) -> Any:
    optimizer = optax.multi_transform({True: optax.adam(1e-3), False: optax.sgd(0.1, 0.9)},
                                      {"w": True, "b": False})
    return optimizer.init({"w": jnp.full(3, value), "b": jnp.full(2, value)})


STATES = {
    "hmc": hmc_state, "multi_transform": multi_transform,
    "enum": lambda value: {Color.RED: jnp.full(2, value)},
    "none": lambda value: {None: jnp.full(2, value)},
    "floats": lambda value: {0.5: jnp.full(2, value), 1.5: jnp.full(1, value)},
    "bytes": lambda value: {b"a/b": jnp.full(2, value), b"": {(): jnp.full(2, value)}}}


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", WAYS)
def test_there_and_back(tmp_path: pathlib.Path, way: str, state: str) -> None:
    tree, like = STATES[state](3.0), STATES[state](0.0)
    got = WAYS[way](tmp_path / "run", tree, like)
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_exports_say_what_orbax_gets(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    tree = {"in": [{key: {"w": jnp.full(2, number)}} for number, (key, _) in enumerate(TEXTS)],
            "plain": {0: jnp.ones(1)}}  # JAX, and so Orbax, cannot sort the keys in one dict
    store.save(0, tree).result()
    report = store.export(0, tmp_path / "exported")
    assert report.as_text == tuple(
        (f"state/in/{number}/{text}/w", f"Orbax has the key {text} as text")
        for number, (_, text) in enumerate(TEXTS))
    loaded = orbax_v1.load(tmp_path / "exported")
    assert [list(each) for each in loaded["in"]] == [[text] for _, text in TEXTS]
    with orbax_v0.StandardCheckpointer() as checkpointer:  # what it makes of them itself
        checkpointer.save(tmp_path / "own", tree)
    with orbax_v0.StandardCheckpointer() as checkpointer:
        own = checkpointer.restore(tmp_path / "own")
    assert jax.tree.structure(own) == jax.tree.structure(loaded)
    program = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api" / "cli" / "stepwell"
    done = subprocess.run([program, "export", store.path, "0", tmp_path / "by_program"],
                          capture_output=True, text=True, check=True)
    assert "key as text state/in/0/True/w: Orbax has the key True as text\n" in done.stdout
    store.save(1, {"in": {True: 1, "True": 2}}).result()
    with pytest.raises(stepwell.InvalidArgumentError, match=r'Orbax names it "in.True", like'):
        store.export(1, tmp_path / "both")


def test_without_a_target(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    flax.save_checkpoint(tmp_path / "flax", {(1, "a"): {0: [jnp.ones(1)]}}, 0)
    assert flax.restore_checkpoint(tmp_path / "flax", None) == {"(1, 'a')": {"0": {"0": 1}}}
    facade_v1.save(tmp_path / "v1", {(1, "a"): {True: jnp.ones(1)}})
    assert facade_v1.load(tmp_path / "v1") == {"(1, 'a')": {"True": 1}}


def test_parts_of_drafts_share_dicts(store: stepwell.Store) -> None:
    keys = [True, None, ("a", 1), "", "x/y", 3]
    with store.draft(1) as draft:
        for number, key in enumerate(keys):
            draft.add({key: {"w": number}, "in": {key: number}})
    assert store.load(1) == {**{key: {"w": number} for number, key in enumerate(keys)},
                             "in": {key: number for number, key in enumerate(keys)}}


def test_with_other_libraries_keys(store: stepwell.Store) -> None:
    class Module(equinox.Module):
        by: dict[Any, Any]

    module = Module({(1, 2): jnp.ones(2), (1, 3): jnp.zeros(1)})
    store.save(0, {"module": module, "frozen": FrozenDict({True: {"w": 1}})}).result()
    assert list(store.tree(0)) == ["frozen/True/w", "module/by/(1, 2)", "module/by/(1, 3)"]
    like = {"module": Module({(1, 2): jnp.zeros(2), (1, 3): jnp.ones(1)}),
            "frozen": FrozenDict({True: {"w": 0}})}
    same(store.load(0, like=like), {"module": module, "frozen": FrozenDict({True: {"w": 1}})})
