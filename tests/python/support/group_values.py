# SPDX-License-Identifier: Apache-2.0
"""The values that the processes of group_process.py save."""

import hashlib
from typing import Any

import jax
import numpy as np

# (shape, partition spec over the mesh (x, y))
LEAVES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "rows": ((16, 6), ("x",)),
    "both": ((8, 8), ("y", "x")),
    "tuple": ((24,), (("x", "y"),)),
    "whole": ((5, 3), ()),
    "scalar": ((), ()),
    "empty": ((0, 4), ()),
    "large": ((64, 4096), (None, "x")),
}
# Saved when it is asked for: its shards have a large prime length, so that each has a chunk grid of
# its own.
EVERY_LEAF = {**LEAVES, "prime": ((2097166,), ("x",)), "sparse": ((128, 4096), ("x",))}


def values(name: str, step: int) -> np.ndarray:
    shape, _ = EVERY_LEAF[name]
    count = int(np.prod(shape))
    if name == "sparse":  # one element of fifty changes from step to step
        index = np.arange(count)
        return (index % 997 + (step + index % 50) // 50).astype(np.float32).reshape(shape)
    return (np.arange(count, dtype=np.float32).reshape(shape) * 0.5 + step * 1000 + len(name))


def digest_of(tree: Any) -> str:
    """Digests all values of a tree, and what they are."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        is_key = jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
