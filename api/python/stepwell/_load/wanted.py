# SPDX-License-Identifier: Apache-2.0
"""Describes the leaves of `like` as stored types and in words."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .._pytree.objects import is_stateful
from .._pytree.records import array_text
from .._pytree.tree import is_array_like, type_name
from .._stepwell import ValueType, name_of
from .._text import with_article

VALUE_TYPES = ((bool, ValueType.BOOL), (int, ValueType.INT), (float, ValueType.FLOAT),
                (complex, ValueType.COMPLEX), (str, ValueType.STR), (bytes, ValueType.BYTES))


def value_type_of(like: Any) -> ValueType:
    found = (number for kind, number in VALUE_TYPES if isinstance(like, kind))
    return next(found, ValueType.BYTES)


def wanted_text(like: Any) -> str:
    if is_array_like(like):
        dtype = like.dtype
        try:
            text = array_text(dtype, tuple(like.shape))
        except TypeError:  # a PRNG key's dtype is not a NumPy dtype: its data are what is stored
            data, impl = key_data_of(like)
            text = array_text(data.dtype, data.shape, impl)
        return f"a scalar {dtype}" if isinstance(like, np.generic) else text
    if like is None:
        return "None"
    if is_stateful(like):
        return f"the state of {with_article(type_name(like))}"
    return name_of(value_type_of(like))


def key_data_of(like: Any) -> tuple[Any, str]:
    """Returns the abstract array of the data of typed PRNG keys, concrete or abstract, and the name
    of their kind, as `jax.random.key(impl=)` takes it. Their dtype spells some of these
    otherwise."""
    random = sys.modules["jax"].random
    kinds: list[str] = []

    def data(keys: Any) -> Any:
        kinds.append(str(random.key_impl(keys)))
        return random.key_data(keys)

    return sys.modules["jax"].eval_shape(data, like), kinds[0]
