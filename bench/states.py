# SPDX-License-Identifier: Apache-2.0
"""The states that are saved, and what is done with trees of arrays."""

import sys
from typing import Any

import numpy as np


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


def make_leaves(count: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {f"leaf_{i:04}": generator.random(1024, dtype=np.float32) for i in range(count)}


def advance(tree: Any) -> Any:
    """Other contents of the same kind: NumPy arrays in place, jax arrays as new ones."""
    if isinstance(tree, dict):
        return {key: advance(child) for key, child in tree.items()}
    return np.negative(tree, out=tree) if isinstance(tree, np.ndarray) else -tree


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in flat(tree[key])]
    return [tree]


def to_jax(tree: Any) -> Any:
    """Copies in JAX's own memory, so that nothing is shared with NumPy."""
    import jax
    import jax.numpy as jnp

    return jax.block_until_ready(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree))


def abstract(tree: Any) -> Any:
    import jax

    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )


def ready(tree: Any) -> Any:
    jax = sys.modules.get("jax")
    return tree if jax is None else jax.block_until_ready(tree)


def expect_equal(name: str, got: Any, want: Any) -> None:
    pairs = list(zip(flat(got), flat(want), strict=True))
    if not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs):
        sys.exit(f"{name} gave other bytes back than it was given")
