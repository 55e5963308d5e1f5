# SPDX-License-Identifier: Apache-2.0
"""What becomes of each place of `like`, and the tree that is built of it once all is read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from .._pytree.tree import Opened, rebuild
from .._stepwell import Matched
from .stateful import State


class Container(NamedTuple):
    """A container of `like` with what stands in it."""

    node: Any
    opened: Opened
    children: list[Any]  # plans: one of these classes, a State, or int, the number of a slot


class AsStored(NamedTuple):
    """Containers of `like` that are just as stored; of their ndarrays the slots from `first` to
    before `end`; and the plans of the others."""

    matched: Matched
    first: int
    end: int
    others: list[Any]


class Keep(NamedTuple):
    """A leaf that is taken from `like` as it is."""

    leaf: Any


def build(plan: Any, values: list[Any], states: list[Callable[[], Callable[[], object]]]) -> Any:
    """`values`: of the slots. What sets the state of an object goes to `states`."""
    if type(plan) is int:
        return values[plan]
    if isinstance(plan, AsStored):
        others = [values[each] if type(each) is int else build(each, values, states)
                  for each in plan.others]
        return plan.matched.build(values[plan.first:plan.end], others)
    if isinstance(plan, Keep):
        return plan.leaf
    if isinstance(plan, State):
        states.append(functools.partial(plan.set, values))
        return plan.leaf
    return rebuild(plan.node, plan.opened,
                   [build(child, values, states) for child in plan.children])
