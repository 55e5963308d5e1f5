# SPDX-License-Identifier: Apache-2.0
"""A step's stored tree, as the index has it, and what paths name in it. No array data is read.

format/path.h has the language of paths, and db/read/step_tree.h resolves them, for every interface
alike. With only the item `state` in the step its name may be left out; otherwise the first
component is the item.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _stepwell
from .._stepwell import LeafKind, Record
from ..errors import AmbiguousPathError
from .tree import ATTRIBUTE, INDEX, INT_KEY, KEY, Component, path_text

ARRAY, VALUE, NODE = LeafKind.ARRAY, LeafKind.VALUE, LeafKind.NODE

ROOT = -1  # above the items of a step

PathLike = str | tuple[Hashable, ...]  # the latter: of keys, and of names and indices


class StoredTree:
    """Records of a step by number, with children. Number ROOT is the step; its children are the
    items. Numbers follow the key order, so a node comes before what is in it."""

    def __init__(self, table: _stepwell.LeafTable, only_state: bool | None = None) -> None:
        """`only_state`: for a table that has but a part of the step."""
        self.table = table
        self._only_state = only_state
        self.records: list[Record] = table.records()
        self.children: dict[int, dict[Component, int]] = {ROOT: {}}
        self._spelled: dict[int, dict[str, list[int]]] = {}
        children = self.children
        for number, record in enumerate(self.records):
            component = record.component
            if component is None:
                children[ROOT][(KEY, record.item)] = number
            else:
                children[record.parent][component] = number
            if record.kind == NODE:
                children[number] = {}

    # ---- structure ----

    @property
    def only_state(self) -> bool:
        """Whether `state` is the only item, so that its name may be left out of paths."""
        if self._only_state is not None:
            return self._only_state
        items = self.children[ROOT]
        return len(items) == 1 and (KEY, "state") in items

    @property
    def top(self) -> int:
        """What the empty path names: the only item `state`, or the step with all its items."""
        return self.children[ROOT][(KEY, "state")] if self.only_state else ROOT

    def is_node(self, number: int) -> bool:
        return number == ROOT or self.records[number].kind == NODE

    def component(self, number: int) -> Component:
        record = self.records[number]
        return (KEY, record.item) if record.component is None else record.component

    def components(self, number: int, above: int = ROOT) -> list[Component]:
        """The components from `above` (not included) down to `number`."""
        path: list[Component] = []
        while number not in (above, ROOT):
            path.append(self.component(number))
            number = self.records[number].parent
        path.reverse()
        return path

    def number(self, components: list[Component]) -> int:
        """The record with this very path, its item first."""
        number = ROOT
        for component in components:
            number = self.children[number][component]
        return number

    def spelled(self, number: int) -> dict[str, list[int]]:
        """Children by spelling: key 0, index 0 and attribute "0" are alike."""
        index = self._spelled.get(number)
        if index is None:
            index = {}
            for component, child in self.children.get(number, {}).items():
                index.setdefault(str(component[1]), []).append(child)
            self._spelled[number] = index
        return index

    def find(self, number: int, component: Component) -> list[int]:
        """Children that `component` can mean: the one with its very type, else those spelled
        alike, numbers first for a number and names first for a name."""
        exact = self.children.get(number, {}).get(component)
        if exact is not None:
            return [exact]
        alike = self.spelled(number).get(str(component[1]), [])
        if len(alike) > 1:
            numeric = component[0] in (INT_KEY, INDEX)
            same = [c for c in alike if (self.component(c)[0] in (INT_KEY, INDEX)) == numeric]
            if len(same) == 1:
                return same
        return alike

    def value_of(self, number: int, has_value: bool = False) -> int:
        """The record of the value of an NNX Variable at `number`. Orbax has a level `value` for
        it, so what was imported has that, too; what was saved from NNX has not. `has_value`: the
        value itself is a container with `value` in it, and nothing else."""
        if number == ROOT or len(self.children.get(number, {})) != 1:
            return number
        found = self.find(number, (ATTRIBUTE, "value"))
        if not found or self.records[number].variable_types:
            return number
        return number if has_value and not self.find(found[0], (ATTRIBUTE, "value")) else found[0]

    def leaves(self, number: int) -> Iterator[int]:
        """Leaves at or below, in key order."""
        if not self.is_node(number):
            yield number
            return
        stack = list(reversed(self.children[number].values()))
        while stack:
            child = stack.pop()
            if self.records[child].kind == NODE:
                stack.extend(reversed(self.children[child].values()))
            else:
                yield child

    # ---- text ----

    def text(self, number: int) -> str:
        """The path that `load` takes for this record, as short as it may be."""
        components = self.components(number)
        if self.only_state and components:
            short = path_text(components[1:])
            if len(components) == 1 or short and str(components[1][1]) != "state":
                return short
        return path_text(components)

    def relative_text(self, number: int, above: int) -> str:
        return path_text(self.components(number, above))

    def by_text(self, leaves: list[int], above: int | None = None) -> dict[str, int]:
        """The leaves by path, from the record `above` on. AmbiguousPathError: two have one text."""
        found: dict[str, int] = {}
        for leaf in leaves:
            text = self.text(leaf) if above is None else self.relative_text(leaf, above)
            if found.setdefault(text, leaf) != leaf:
                raise AmbiguousPathError(
                    f"two leaves are spelled {text!r}, so a dict by path cannot hold both; take "
                    "them one by one, as tuples with int for keys and indices and str for names")
        return found

    def describe(self, number: int) -> str:
        """What is stored there, in words: "float32[3, 4]", "str", "dict of 3"."""
        record = self.records[number]
        if record.kind == ARRAY:
            return array_text(record.dtype, record.shape, record.prng_impl)
        if record.kind == VALUE:
            return VALUE_NAMES[record.value_type]
        count = len(self.children[number])
        return f"{CONTAINER_NAMES.get(record.container, 'node')} of {count}"


class Selection(NamedTuple):
    """What a path names: one record, or for a glob the leaves that it takes."""

    number: int | None
    leaves: list[int]


def resolve(tree: StoredTree, path: PathLike | None, below: int | None = None) -> Selection:
    """What `path` names in a step's tree; `below`: relative to that record, no item name."""
    if path is None or path in ("", ()):  # needs no index of the step, which a load would pay for
        return Selection(tree.top if below is None else below, [])
    return Selection(*tree.table.resolve(path, below))


VALUE_NAMES = {0: "None", 5: "int", 6: "float", 7: "bool", 8: "str", 9: "bytes", 10: "complex"}
CONTAINER_NAMES = {1: "dict", 2: "list", 3: "tuple", 4: "namedtuple", 5: "object"}


def array_text(dtype: Any, shape: tuple[int, ...], prng_impl: str = "") -> str:
    name = f"key<{prng_impl}> {dtype}" if prng_impl else str(np.dtype(dtype))
    return f"{name}[{', '.join(map(str, shape))}]"
