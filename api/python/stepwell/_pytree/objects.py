# SPDX-License-Identifier: Apache-2.0
"""Objects that are neither arrays nor pytree nodes: those with a state, and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

_RANDOM = (np.random.Generator, np.random.BitGenerator)  # their state is an attribute


def is_stateful(leaf: object) -> bool:
    """Returns true if an object gives its state as a tree and takes it back, as data iterators and
    NumPy's random generators do."""
    return isinstance(leaf, _RANDOM) or (
        callable(getattr(leaf, "get_state", None))
        and callable(getattr(leaf, "set_state", None)) and not isinstance(leaf, type))


def state_of(leaf: Any) -> Any:
    """The state of an object that is_stateful."""
    return _bits_of(leaf).state if isinstance(leaf, _RANDOM) else leaf.get_state()


def set_state_of(leaf: Any, state: Any) -> None:
    if isinstance(leaf, _RANDOM):
        _bits_of(leaf).state = state
    else:
        leaf.set_state(state)


def _bits_of(leaf: Any) -> Any:
    return leaf.bit_generator if isinstance(leaf, np.random.Generator) else leaf


def data_fields(node: Any) -> list[tuple[str, Any]] | None:
    """Names and values of a dataclass's fields, without those that were never set; None when
    `node` is none, or has a state."""
    if not dataclasses.is_dataclass(node) or isinstance(node, type) or is_stateful(node):
        return None
    return [(field.name, getattr(node, field.name)) for field in dataclasses.fields(node)
            if hasattr(node, field.name)]


def with_fields(node: Any, names: Iterable[str], values: Iterable[Any]) -> Any:
    """A copy of a dataclass with other values. Its __init__, which need not take all fields, is
    not called."""
    new = copy.copy(node)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)  # also where it is frozen
    return new
