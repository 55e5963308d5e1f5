# SPDX-License-Identifier: Apache-2.0
"""ocp.arrays: abstract arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from . import trees

Shape = tuple[int, ...]
DType = Any
Scalar = int | float | np.number[Any] | bytes | bool
AbstractScalar = Scalar


class AbstractArray(Protocol):
    shape: Shape | None
    dtype: DType | None


class AbstractShardedArray(Protocol):
    shape: Shape | None
    dtype: DType | None
    sharding: Any


ArrayLike = AbstractArray | AbstractShardedArray


def to_shape_dtype_struct(arr: Any, dtype: Any = None, scalar_dtype: Any = None,
                          support_format: bool = False) -> Any:
    """A jax.ShapeDtypeStruct of an array, concrete or abstract; a Python scalar as it is, or as
    `scalar_dtype`. `dtype` replaces the array's own. A typed PRNG key gives that of its data."""
    jax = trees.import_jax()
    if isinstance(arr, jax.Array) and jax.dtypes.issubdtype(arr.dtype, jax.dtypes.prng_key):
        arr = jax.random.key_data(arr)
    if isinstance(arr, (int, float, np.number)):
        return arr if scalar_dtype is None else scalar_dtype(arr)
    shape = arr.shape if hasattr(arr, "shape") else arr.global_shape
    sharding = getattr(arr, "sharding", None)
    if support_format and getattr(arr, "format", None) is not None:
        sharding = arr.format
    return jax.ShapeDtypeStruct(shape, dtype or arr.dtype, sharding=sharding)
