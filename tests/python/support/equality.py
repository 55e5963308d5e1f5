# SPDX-License-Identifier: Apache-2.0
"""Equality of trees, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np


def bits(leaf: Any) -> Any:
    """A leaf as something whose `==` compares type and bits (NaN payloads, −0.0, dtypes)."""
    import jax

    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return ("key", str(jax.random.key_impl(leaf)), bits(jax.random.key_data(leaf)))
        return ("jax", leaf.weak_type, leaf.committed, leaf.sharding, bits(np.asarray(leaf)))
    if isinstance(leaf, (np.ndarray, np.generic)):
        whole = np.asarray(leaf)
        if whole.dtype.name in ("int2", "int4"):  # the high bits of their bytes mean nothing
            return (type(leaf), whole.dtype, whole.shape, whole.astype(np.int8).tobytes())
        return (type(leaf), whole.dtype, whole.shape, whole.tobytes())
    if isinstance(leaf, float):
        return (type(leaf), np.float64(leaf).tobytes())
    return leaf if callable(leaf) else (type(leaf), leaf)


def same(left: Any, right: Any) -> bool:
    """Equal pytrees: structure, types and bits."""
    import jax

    try:
        a, a_structure = jax.tree.flatten(left)
        b, b_structure = jax.tree.flatten(right)
    except ValueError:  # dicts with int and str keys: more than JAX can sort
        return bool(left == right)
    return a_structure == b_structure and [bits(x) for x in a] == [bits(y) for y in b]


def alike(left: Any, right: Any) -> bool:
    """Returns true if trees are `same`, except that jax arrays may differ in whether they are
    committed to their devices, and in their weak types: these are what Orbax does not keep."""
    import jax

    a, a_structure = jax.tree.flatten(left)
    b, b_structure = jax.tree.flatten(right)

    def kept(leaf: Any) -> Any:
        found = bits(leaf)
        return (found[0], *found[3:]) if isinstance(leaf, jax.Array) and found[0] == "jax" else (
            found)

    return a_structure == b_structure and list(map(kept, a)) == list(map(kept, b))
