# SPDX-License-Identifier: Apache-2.0
"""Objects of `like` that take their state themselves: those with get_state and set_state, and
NumPy's random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._pytree.keys import key_of
from .._pytree.objects import set_state_of, state_of
from .._pytree.records import ROOT
from .._pytree.tree import LIST, LITERAL, TUPLE
from .._stepwell import StepTree
from .device_placement import Target
from .plain import Plain

AddSlot = Callable[[int, Callable[[Any], Any], "Target | None"], int]


class State(NamedTuple):
    """An object, and what is read for it."""

    leaf: Any
    path: str
    build: Callable[[list[Any]], Any]  # the state, of the values of all slots

    def set(self, values: list[Any]) -> Callable[[], object]:
        """Sets it. Gives what sets the state that the object had before."""
        before = None
        with contextlib.suppress(Exception):  # a new object may have none
            before = state_of(self.leaf)
        state = self.build(values)
        try:
            set_state_of(self.leaf, state)
        except Exception as error:
            hint = ""
            if isinstance(self.leaf, np.random.Generator) and isinstance(state, dict):
                hint = f"; a np.random.Generator(np.random.{state.get('bit_generator')}()) takes it"
            error.add_note(f"stepwell: set_state of the {type(self.leaf).__name__} at "
                           f"{self.path!r} in `like` refused the stored state{hint}")
            raise
        return lambda: None if before is None else set_state_of(self.leaf, before)


def plan_state(leaf: Any, path: str, tree: StepTree, number: int, add_slot: AddSlot) -> State:
    """The state is what loading without `like` gives: plain containers, NumPy arrays, Python
    values, and typed PRNG keys if JAX is imported. The containers are those of `tree`, which may
    have leaves at other places than the step."""
    return State(leaf, path, _plan(tree, number, add_slot))


def _plan(tree: StepTree, number: int, add_slot: AddSlot) -> Callable[[list[Any]], Any]:
    if not tree.is_node(number):
        slot = _add_leaf(tree, number, add_slot)
        return lambda values: values[slot]
    children = [(key_of(name) if kind == LITERAL else name, _plan(tree, child, add_slot))
                for (kind, name), child in tree.children(number).items()]
    container = None if number == ROOT else tree.records[number].container
    if container == LIST:
        return lambda values: [build(values) for _, build in children]
    if container == TUPLE:
        return lambda values: tuple([build(values) for _, build in children])
    return lambda values: {name: build(values) for name, build in children}


def _add_leaf(tree: StepTree, number: int, add_slot: AddSlot) -> int:
    return add_slot(*Plain("numpy", None, False, None).slot(tree, number, {}, []))
