# SPDX-License-Identifier: Apache-2.0
"""The path language."""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

import jax
import numpy as np
import pytest

import stepwell
from stepwell._load.source import Source


class Point(NamedTuple):
    x: list
    y: tuple


@pytest.fixture
def step(store):
    tree = {"params": {"enc": {"kernel": np.ones((2, 2)), "bias": np.zeros(2)},
                       "dec": {"kernel": np.ones((3, 3)), "bias": np.zeros(3)}},
            "layers": [{"w": 1}, {"w": 2}], "a/b": {"*": 10, "?": 11, "[": 12, "\\": 13},
            "none": None}
    store.save(900, tree).result()
    return store


def test_leaf_node_and_whole(step):
    assert step.load(900, "params/enc/bias").tolist() == [0, 0]
    assert sorted(step.load(900, "params/enc")) == ["bias", "kernel"]
    assert sorted(step.load(900)) == ["a/b", "layers", "none", "params"]
    assert step.load(900, "state/layers/1/w") == step.load(900, "layers/1/w") == 2
    assert step.load(path="layers") == [{"w": 1}, {"w": 2}]


@pytest.mark.parametrize(("pattern", "paths"), [
    ("params/**/kernel", ["params/dec/kernel", "params/enc/kernel"]),
    ("params/*/bias", ["params/dec/bias", "params/enc/bias"]),
    ("**/w", ["layers/0/w", "layers/1/w"]),
    ("layers/*", ["layers/0/w", "layers/1/w"]),  # a pattern that meets a node takes its subtree
    ("par?ms/enc/*", ["params/enc/bias", "params/enc/kernel"]),
    ("params/?ec/k*", ["params/dec/kernel"]),
    ("**/kernel/**", ["params/dec/kernel", "params/enc/kernel"]),
    ("a\\/b/*", ["a\\/b/\\*", "a\\/b/\\?", "a\\/b/\\[", "a\\/b/\\\\"]),
    ("none*", ["none"]),
    ("state/layers/*/w", ["layers/0/w", "layers/1/w"]),
])
def test_globs_give_flat_dicts(step, pattern, paths):
    assert sorted(step.load(900, pattern)) == paths
    assert sorted(step[900][pattern]) == paths


def test_escapes_and_tuples(step):
    assert step.load(900, "a\\/b/\\*") == 10
    assert step.load(900, "a\\/b/\\?") == 11
    assert step.load(900, "a\\/b/\\[") == 12
    assert step.load(900, "a\\/b/\\\\") == 13
    assert step.load(900, ("a/b", "*")) == 10
    assert step.load(900, ("layers", 1, "w")) == 2
    assert step.load(900, ("layers", "1", "w")) == 2  # matched by spelling


@pytest.mark.parametrize(("spelled", "why"), [
    ("a[0]", r"\[ is reserved"), ("a\\", "at the end"), ("a\\b", "not before b"),
    (("a", {1}), "no key that a dict may have"), (7, "a str or a tuple")])
def test_malformed_paths(step, spelled, why):
    with pytest.raises(stepwell.InvalidArgumentError, match=why):
        step.load(900, spelled)


def test_unknown_paths_name_the_nearest(step):
    with pytest.raises(stepwell.PathNotFoundError) as info:
        step.load(900, "params/enc/kernl")
    assert str(info.value).startswith("step 900 has nothing at \"params/enc/kernl\"; nearest: "
                                      "params/enc/kernel")
    assert isinstance(info.value, KeyError)
    with pytest.raises(stepwell.PathNotFoundError, match="there are: .*params"):
        step.load(900, "zzzzz")
    with pytest.raises(stepwell.PathNotFoundError):
        step.load(900, "params/**/nothing*")
    assert "params/enc" in step[900]
    assert "params/nope" not in step[900]


def test_spelling_ties(store):
    store.save(0, {"d": {0: "int", "0": "str"}}).result()
    assert store.load(0, ("d", 0)) == "int"
    assert store.load(0, ("d", "0")) == "str"
    with pytest.raises(stepwell.AmbiguousPathError) as info:
        store.load(0, "d/0")
    assert "is ambiguous" in str(info.value)
    assert "int key" in str(info.value)
    assert store.load(0, like={"d": {0: "", "0": ""}}) == {"d": {0: "int", "0": "str"}}


def test_a_key_named_like_the_item(store):
    store.save(0, {"state": {"x": 1}, "y": 2}).result()
    with pytest.raises(stepwell.AmbiguousPathError):
        store.load(0, "state")
    assert store.load(0, "state/state") == {"x": 1}
    assert store.load(0, "") == store.load(0)
    assert store.load(0, "state/x") == 1
    assert store.load(0, list(store.tree(0))[0]) == 1


def test_attributes_match_keys(store):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Pair:
        a: object
        b: object

    store.save(0, Pair(1, [2])).result()
    assert store.load(0, "b/0") == 2
    assert store.load(0, like={"a": 0, "b": [0]}) == {"a": 1, "b": [2]}
    store.save(1, {"a": 1, "b": (2,)}).result()
    assert store.load(1, like=Pair(0, [0])) == Pair(1, [2])


def test_bare_leaf_is_the_item(store):
    store.save(0, items={"x": np.arange(3), "y": 1}).result()
    assert store.load(0, "x").tolist() == [0, 1, 2]
    assert store[0]["x"][1:].tolist() == [1, 2]


VIEW_INDICES = [np.s_[0], np.s_[-1], np.s_[1:3], np.s_[::-1], np.s_[5:0:-2],
                np.s_[..., 2], np.s_[2, ..., 1],
                np.s_[1:4, ::3], np.s_[...], np.s_[None, 3], np.s_[3:3], np.s_[1, 2, 3],
                np.s_[2, :, -4:],
                np.s_[..., None], np.s_[100:], np.s_[-3::2, 1]]


@pytest.mark.parametrize("index", VIEW_INDICES, ids=str)
def test_array_views_slice_like_numpy(store, index):
    array = np.arange(7 * 5 * 6, dtype=np.int32).reshape(7, 5, 6)
    store.save(0, {"x": array}).result()
    view = store[0]["x"]
    np.testing.assert_array_equal(view[index], array[index])
    assert np.shape(view[index]) == array[index].shape


def test_views(step):
    view = step[900]
    kernel = view["params/enc/kernel"]
    assert (kernel.shape, kernel.dtype, kernel.ndim, kernel.size, kernel.nbytes) == (
        (2, 2), np.float64, 2, 4, 32)
    assert len(kernel) == 2
    assert kernel.path == "params/enc/kernel"
    assert repr(kernel) == "<stored params/enc/kernel: float64[2, 2]>"
    assert np.asarray(kernel, np.float32).dtype == np.float32
    for bad in ([0, 1], True, 1.0, np.array([True, False])):
        with pytest.raises(TypeError, match="read it first"):
            kernel[bad]
    for bad in (5, (0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            kernel[bad]
    assert view["layers/0/w"] == 1
    node = view["params"]
    assert sorted(node) == ["dec", "enc"]
    assert sorted(node["*/bias"]) == ["dec/bias", "enc/bias"]
    assert node["enc"]["bias"][:].tolist() == [0, 0]
    assert "enc/kernel" in repr(node)
    assert view.items == ["state"]
    assert view.time.year >= 2024
    assert view.step == 900


def test_tree_prints_a_table(step):
    tree = step.tree(900)
    assert tree["params/enc/kernel"] == ("array", (2, 2), np.dtype("float64"), 32, None)
    text = repr(tree)
    assert text.startswith("step 900: 11 leaves")
    assert "params/enc/kernel  float64[2, 2]" in text


def test_only_the_wanted_chunks_are_read(store):
    random = np.random.default_rng(0)
    tree = {"a": random.integers(0, 255, 8 << 20).astype(np.uint8),
            "b": random.integers(0, 255, 8 << 20).astype(np.uint8)}
    store.save(0, tree).result()
    store.load(0, "a")
    one = store.stats()["last_load"]
    assert 8 << 20 <= one["bytes_read"] <= 1.05 * (8 << 20)
    store[0]["b"][:10]
    assert store.stats()["last_load"]["bytes_read"] <= 4 << 20
    store.load(0)
    assert store.stats()["last_load"]["bytes_out"] == 16 << 20


@pytest.fixture
def wide(store):
    tree = {"params": {f"layer_{i:03}": {"kernel": np.full(4, i), "bias": i} for i in range(300)},
            "opt": Point(x=[np.zeros(2), {7: "seven"}], y=(1, 2))}
    store.save(1, tree).result()
    return store


@dataclasses.dataclass
class Records:
    """Counts the records that the looks of a test have read, and by which way."""

    lookups: list[int]
    whole: int = 0


@pytest.fixture
def records(monkeypatch):
    seen = Records([])

    class Counting:
        def __init__(self, reader):
            self._reader = reader

        def __getattr__(self, name):
            return getattr(self._reader, name)

        def select(self, path, above, whole):
            found = self._reader.select(path, above, whole)
            if found is not None:
                seen.lookups.append(len(found.tree))
            return found

        def tree(self):
            seen.whole += 1
            return self._reader.tree()

        def load(self, path, keys):
            found = self.select(path, [], True) if path else None
            seen.whole += found is None
            return self._reader.load(path, keys)

    init = Source.__init__

    def counted(self, reader, *arguments):
        init(self, reader if isinstance(reader, Counting) else Counting(reader), *arguments)

    monkeypatch.setattr(Source, "__init__", counted)
    return seen


@pytest.mark.parametrize(("where", "expected", "count"), [
    ("params/layer_017/bias", 17, 4),  # the item, params, the layer, the leaf
    ("state/params/layer_017/bias", 17, 4),
    ("params/layer_017", {"kernel": [17.0] * 4, "bias": 17}, 5),
    ("params/layer_017/*", {"params/layer_017/bias": 17, "params/layer_017/kernel": [17.0] * 4}, 5),
    ("opt/y/1", 2, 4),
    ("opt/x/1/7", "seven", 5),
    (("opt", "x", 1, 7), "seven", 5),
    ("opt/x/1", {7: "seven"}, 5),
])
def test_a_path_reads_the_records_on_its_way(wide, records, where, expected, count):
    def plain(tree):
        if isinstance(tree, dict):
            return {key: plain(value) for key, value in tree.items()}
        return tree.tolist() if isinstance(tree, np.ndarray) else tree

    assert plain(wide.load(1, where)) == expected
    assert records.lookups == [count]
    assert records.whole == 0


def test_views_read_the_records_that_they_show(wide, records):
    params = wide[1]["params"]
    assert params["layer_003"]["kernel"][1:].tolist() == [3, 3, 3]
    assert params[("layer_004", "bias")] == 4
    assert max(records.lookups) == 4
    assert len(params) == 300  # all of it now
    assert records.lookups[-1] == 2 + 300 * 3
    before = len(records.lookups)
    assert params["layer_005"]["bias"] == 5
    assert len(records.lookups) == before
    assert records.whole == 0
    assert "layer_999" not in params
    assert "params/layer_001" in wide[1]


def test_what_is_not_there_is_named_from_the_whole_tree(wide, records):
    with pytest.raises(stepwell.PathNotFoundError, match="layer_017/kernel"):
        wide.load(1, "params/layer_017/kernal")
    assert records.whole == 1


def test_a_part_of_the_records_gives_what_the_whole_step_gives(store):
    """Containers may hold children that their kind does not: a Mapping with attributes."""
    @jax.tree_util.register_pytree_with_keys_class
    class Odd(dict):
        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey(k), v) for k, v in self.items()], tuple(self)

        @classmethod
        def tree_unflatten(cls, names, children):
            return cls(zip(names, children, strict=True))

    store.save(0, {"state": Odd(w=1), "w": 2, "b/": 5, "b": 6}).result()
    for path in ("state/w", "w", "b/", "b", ("state", "w")):
        results = []
        for whole in (False, True):
            view = store[0]
            if whole:
                view.tree  # noqa: B018 - reads all records
            try:
                results.append(view[path])
            except stepwell.AmbiguousPathError:
                results.append("ambiguous")
        assert results[0] == results[1], path
    assert store.load(0, "b/") == 5


@jax.tree_util.register_pytree_with_keys_class
class Mixture(dict):
    """Names its children in three ways in turn."""

    def tree_flatten_with_keys(self):
        kinds = (jax.tree_util.GetAttrKey, jax.tree_util.DictKey)
        return [(kinds[i % 3](key) if i % 3 < 2 else jax.tree_util.SequenceKey(i), value)
                for i, (key, value) in enumerate(self.items())], tuple(self)

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(zip(names, children, strict=True))


def random_tree(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.randrange(1000)
    children = [random_tree(rng, depth - 1) for _ in range(rng.randrange(1, 5))]
    names = rng.sample(["x", "y", "1", "2", "3", "x/y", "*"], len(children))
    return rng.choice([
        lambda: children, lambda: tuple(children), lambda: Point(children, names),
        lambda: dict(zip(names, children, strict=True)),
        lambda: dict(enumerate(children)) | {"1": names},
        lambda: Mixture(zip(names, children, strict=True)),
        lambda: Mixture({"x": children, "2": names, "y": children})])()  # "2" twice


def test_a_part_of_the_records_gives_what_the_whole_step_gives_for_any_tree(store):
    def found(view, path):
        try:
            value = view[path]
        except (stepwell.PathNotFoundError, stepwell.AmbiguousPathError) as error:
            return type(error), str(error)
        return [*map(str, value.items())] if isinstance(value, stepwell.NodeView) else value

    rng = random.Random(1)
    outcomes = []
    for step in range(40):
        items = {rng.choice(["state", "x", "0"]): random_tree(rng, 3)}
        if step % 2:
            items["y"] = random_tree(rng, 3)
        store.save(step, items=items).result()
        whole = store[step]
        whole.tree  # noqa: B018 - reads all records
        for _ in range(40):
            words = ["x", "y", "0", "1", "2", "3", "*", "**", "state"]
            path = "/".join(rng.choices(words, k=rng.randrange(1, 5)))
            if rng.random() < 0.2:
                path = tuple(rng.choices(["x", "1", 0, 1, 2], k=rng.randrange(1, 4)))
            part = found(store[step], path)
            assert part == found(whole, path), (items, path)
            outcomes.append(part[0] if isinstance(part, tuple) else None)
    assert outcomes.count(None) > 150
    assert outcomes.count(stepwell.AmbiguousPathError) > 20


def test_views_give_their_own_children(store):
    state = {"n": {"a/b": 1, "a": {"b": 2}, "*": 3}, "e": {"": 1, "x": 2}, "m": {"k[": 1},
             "z": {0: 1, "0": 2}, "bs": {"a\\": 1}, "l": [7, 8]}
    store.save(0, state).result()

    def plain(view):
        if not isinstance(view, stepwell.NodeView):
            return view
        return {name[0] if isinstance(name, tuple) else name: plain(child)
                for name, child in view.items()}

    assert plain(store[0][""]) == {**state, "l": {0: 7, 1: 8}}
    view = store[0]["m"]
    assert ("k[",) in view and "k[" not in view and "q" not in view
    assert list(store[0]["l"]) == [0, 1]


def test_a_dict_by_path_never_drops_a_leaf(store):
    store.save(0, {"d": {0: 1, "0": 2}}).result()
    for load in (lambda: store.load(0, "d/*"), lambda: store[0]["d/*"],
                 lambda: store.load(0, "d/*", like={"d/0": 0})):
        with pytest.raises(stepwell.AmbiguousPathError, match="two leaves are spelled 'd/0'"):
            load()
    assert store.load(0, ("d", 0)) == 1


def test_names_of_items_may_have_lone_surrogates(store):
    store.save(0, items={"\ud800": {"a": 1}, "b": 2}).result()
    assert store[0].items == ["b", "\ud800"]
    assert store.load(0)["\ud800"] == {"a": 1}
