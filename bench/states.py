# SPDX-License-Identifier: Apache-2.0
"""The states that are saved, and what is done with trees of arrays. JAX is imported by none."""

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np


class WrongBytes(Exception):
    """Something was restored that is not what was saved."""


def make_state(size_bytes: int, seed: int = 0) -> dict[str, Any]:
    """Weights and Adam's two moments: 24 large fp32 arrays of random numbers, and small ones."""
    generator = np.random.default_rng(seed)
    rows = max(1, size_bytes // 24 // 4096)

    def layer() -> dict[str, np.ndarray]:
        kernel = generator.random((rows, 1024), dtype=np.float32)
        return {"kernel": kernel, "bias": generator.random(1024, dtype=np.float32)}

    def tree() -> dict[str, Any]:
        return {f"layer_{i}": layer() for i in range(8)}

    return {"params": tree(), "opt_state": {"mu": tree(), "nu": tree()}}


def make_leaves(count: int, leaf_bytes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A flat dict of small fp32 arrays, each with memory of its own."""
    generator = np.random.default_rng(seed)
    width = leaf_bytes // 4
    return {leaf_name(i): generator.random(width, dtype=np.float32) for i in range(count)}


def make_weights(size_bytes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A flat dict of 64 arrays of weights in bfloat16."""
    generator = np.random.default_rng(seed)
    shape = (max(1, size_bytes // 64 // 8192), 4096)
    return {leaf_name(i): (0.02 * generator.standard_normal(shape, np.float32)).astype(
        ml_dtypes.bfloat16) for i in range(64)}


def nudge(weights: dict[str, np.ndarray], generator: np.random.Generator) -> int:
    """Moves one weight in a hundred by an ulp, in place, at random places; returns the bytes of
    those weights."""
    changed = 0
    for leaf in weights.values():
        bits = leaf.reshape(-1).view(np.int16)
        places = np.unique(generator.integers(0, bits.size, bits.size // 100))
        bits[places] += generator.choice(np.array([-1, 1], np.int16), places.size)
        changed += places.size * 2
    return changed


def leaf_name(index: int) -> str:
    return f"leaf_{index:06}"


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: tree_map(change, child) for key, child in tree.items()}
    return change(tree)


def leaves(tree: Any) -> list[Any]:
    return list(flatten(tree).values())


def flatten(tree: Any, path: str = "") -> dict[str, Any]:
    """Leaves by path."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: leaf for key in sorted(tree)
            for name, leaf in flatten(tree[key], f"{path}/{key}" if path else key).items()}


def unflatten(named: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def total_bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in leaves(tree))


def advance(tree: Any) -> Any:
    """Other contents of the same kind: NumPy arrays in place, jax arrays as new ones."""
    return tree_map(
        lambda leaf: np.negative(leaf, out=leaf) if isinstance(leaf, np.ndarray) else -leaf, tree)


def empty_like(leaf: Any) -> np.ndarray:
    return np.empty(leaf.shape, leaf.dtype)


def is_jax(tree: Any) -> bool:
    """Returns true if the leaves are jax's, concrete or abstract."""
    return not isinstance(leaves(tree)[0], np.ndarray)


def to_jax(tree: Any) -> Any:
    """Copies in JAX's own memory, so that nothing is shared with NumPy."""
    import jax
    import jax.numpy as jnp

    return jax.block_until_ready(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree))


def target(tree: Any) -> Any:
    """Makes the target of a load after a restart. Its jax arrays are abstract, and nothing has
    written to its NumPy arrays."""
    if not is_jax(tree):
        return tree_map(empty_like, tree)
    import jax

    return tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def ready(tree: Any) -> Any:
    jax = sys.modules.get("jax")
    return tree if jax is None else jax.block_until_ready(tree)


def expect_equal(got: Any, want: Any) -> None:
    """Compares structure, dtypes, shapes and every bit."""
    ours, theirs = flatten(got), flatten(want)
    if ours.keys() != theirs.keys():
        raise WrongBytes("gave another tree back than it was given")
    for name, leaf in ours.items():
        a, b = np.asarray(leaf), np.asarray(theirs[name])
        if a.dtype != b.dtype or a.shape != b.shape:
            raise WrongBytes(f"gave {name} back with another dtype or shape")
        if not np.array_equal(_bits(a), _bits(b)):
            raise WrongBytes(f"gave {name} back with other bytes than it was given")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
