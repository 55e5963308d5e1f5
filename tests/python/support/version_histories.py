# SPDX-License-Identifier: Apache-2.0
"""Random histories of steps that share chunks or are differences, and what Orbax reads of them.

    PYTHONPATH=<build>/python python version_histories.py DIR FIRST:END

A seed is a history: leaves of all dtypes change a little, wholly or not, leave and come back; steps
are saved, replaced and deleted; the store is reclaimed, opened again and branched. Then each step
that is left is loaded, exported, and read by the real Orbax v0 and v1. All must have every bit.
"""

from __future__ import annotations

import json
import pathlib
import random
import shutil
import sys
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp_v0
import stepwell
from equality import same
from orbax.checkpoint import v1 as ocp_v1

DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16, np.float64, ml_dtypes.float8_e4m3fn,
          ml_dtypes.float8_e5m2, np.int8, np.int32, np.uint64, np.int64, np.uint16]
SHAPES: list[tuple[int, ...]] = [(512, 1024), (300, 7), (64, 300), (7,), (1, 70_000), (3, 5, 999)]
CHANGES = [0, 0.0005, 0.01, 0.05, 0.3, 1]  # shares of a leaf's elements
STEPS = 24


def as_bits(leaf: np.ndarray) -> np.ndarray:
    return leaf.view(np.dtype(f"i{leaf.dtype.itemsize}"))


def noise(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def changed(rng: np.random.Generator, leaf: np.ndarray, share: float) -> np.ndarray:
    """A copy of which about `share` of the elements differ by a little."""
    leaf = leaf.copy()
    where = rng.random(leaf.shape) < share
    bits = as_bits(leaf)
    bits[where] += rng.choice([-1, 1, 2], int(where.sum())).astype(bits.dtype)
    return leaf


class History:
    """One store and the trees that it must hold."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.path = folder / "store"
        self.name: str | None = None  # of the branch
        self.delta = seed % 4 != 0
        self.wanted: dict[int, dict[str, Any]] = {}
        self.leaves = {}
        for name in "abcdef":
            dtype, shape = self.chance.choice(DTYPES), self.chance.choice(SHAPES)
            self.leaves[name] = noise(self.rng, dtype, shape)
        self.objects: dict[str, Any] = {}  # leaves as they were saved last: the same objects
        self.open()

    def open(self) -> None:
        staging_bytes = (17 << 20) if self.chance.random() < 0.3 else None
        self.store = stepwell.open(self.path, branch=self.name, staging_bytes=staging_bytes,
                                   delta=self.delta and self.chance.random() < 0.8)

    def _tree(self, step: int) -> dict[str, Any]:
        for name, leaf in self.leaves.items():
            share = self.chance.choice(CHANGES)
            if share or name not in self.objects:
                self.leaves[name] = changed(self.rng, leaf, share)
                self.objects[name] = self._object(self.leaves[name])
            elif self.chance.random() < 0.5:
                self.objects[name] = self._object(leaf.copy())
        there = {name: leaf for name, leaf in self.objects.items() if self.chance.random() < 0.9}
        return {"w": there, "n": step}

    def _object(self, leaf: np.ndarray) -> Any:
        is_wide = leaf.dtype.itemsize == 8  # which JAX would narrow
        return leaf if is_wide or self.chance.random() < 0.5 else jnp.asarray(leaf)

    def save(self, step: int) -> None:
        tree = self._tree(step)
        number = self.chance.choice([step, step, *self.wanted]) if self.wanted else step
        self.store.save(number, tree, if_exists="replace")
        self.wanted[number] = tree

    def disturb(self) -> None:
        if len(self.wanted) > 5 and self.chance.random() < 0.6:
            gone = self.chance.choice(sorted(self.wanted))
            self.store.wait()
            self.store.delete(gone)
            del self.wanted[gone]
        if self.chance.random() < 0.1:
            self.store.reclaim()
        if self.chance.random() < 0.15:
            self.store.close()
            self.open()

    def branch(self) -> None:
        """The rest of the history is the branch's."""
        self.store.wait()
        self.name = "b"
        self.store.branch(self.name)
        self.store.close()
        self.open()


def read_v0(root: pathlib.Path, step: int) -> Any:
    with ocp_v0.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(root / str(step) / "state")


def read_v1(path: pathlib.Path, step: int) -> Any:
    return ocp_v1.load(path)


READERS: list[tuple[Literal["v0", "v1"], Callable[[pathlib.Path, int], Any]]] = [
    ("v0", read_v0), ("v1", read_v1)]
MODES: list[Literal["auto", "link", "copy"]] = ["auto", "link", "copy"]


def as_numpy(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(leaf) for name, leaf in tree.items()}


def run(folder: pathlib.Path, seed: int) -> tuple[int, int]:
    """Returns how many steps were compared, and how many of them share something with others.
    Raises AssertionError for what differs."""
    history = History(folder, seed)
    for step in range(STEPS):
        history.save(step)
        history.disturb()
        if step == STEPS // 2 and seed % 3 == 0:
            history.branch()
    store = history.store
    store.wait()
    store.reclaim()
    assert store.steps() == sorted(history.wanted), seed
    shared = 0
    for number, tree in history.wanted.items():
        assert same(as_numpy(store.load(number)["w"]), as_numpy(tree["w"])), (seed, number)
        shared += store[number].owned_bytes < store[number].stored_bytes
        for layout, read in READERS:
            place = folder / f"{layout}-{number}"
            store.export(number, place, layout=layout, leaves="numpy",
                         mode=history.chance.choice(MODES))
            found = read(place, number)
            assert same(as_numpy(found["w"]), as_numpy(tree["w"])), (seed, number, layout)
            shutil.rmtree(place)
    report = store.verify()
    assert report.ok, (seed, report.problems)
    store.close()
    return len(history.wanted), shared


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    first, _, end = sys.argv[2].partition(":")
    steps = shared = 0
    for seed in range(int(first), int(end)):
        where = folder / str(seed)
        where.mkdir(parents=True)
        compared, small = run(where, seed)
        steps, shared = steps + compared, shared + small
        shutil.rmtree(where)
    print(json.dumps({"histories": int(end) - int(first), "steps": steps, "shared": shared}))


if __name__ == "__main__":
    main()
