# SPDX-License-Identifier: Apache-2.0
"""A stored tree seen in another arrangement: some of its items, or with renamed leaves. The leaves
keep their numbers, so they are read as ever."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import cast

from .._pytree.records import NODE, ROOT, StoredTree, resolve
from .._pytree.tree import KEY, Component, path_text
from .._stepwell import PathPattern, Record
from .._text import brief
from ..errors import InvalidArgumentError, PathNotFoundError

_ANY_DEPTH = 2  # format::PatternComponent::Kind
_BEFORE = "\x00"  # stands before each component of a path where patterns match it


class RearrangedTree(StoredTree):
    """A tree of the same records with other children. Made anew, it is like `tree`."""

    def __init__(self, tree: StoredTree) -> None:
        self.table = tree.table
        self._only_state = tree.only_state
        self.records = list(tree.records)
        self.children = {number: dict(below) for number, below in tree.children.items()}
        self._spelled = {}
        self._places: dict[int, tuple[int, Component]] = {}  # where a leaf or node is now
        self._tree = tree

    def component(self, number: int) -> Component:
        place = self._places.get(number)
        return self._tree.component(number) if place is None else place[1]

    def components(self, number: int, above: int = ROOT) -> list[Component]:
        path: list[Component] = []
        while number not in (above, ROOT):
            path.append(self.component(number))
            place = self._places.get(number)
            number = self.records[number].parent if place is None else place[0]
        path.reverse()
        return path

    def keep_items(self, items: Iterable[str]) -> None:
        """Leaves out all other items."""
        self._only_state = False
        there = self.children[ROOT]
        self.children[ROOT] = {(KEY, name): there[(KEY, name)] for name in items
                               if (KEY, name) in there}

    def rename(self, renames: Mapping[str, str], top: int) -> None:
        """Moves what is below `top`: `renames` is from paths or globs to paths, relative to it.

        Raises InvalidArgumentError, and PathNotFoundError for a path that nothing has.
        """
        rules = [_Rename(old, new) for old, new in renames.items()]
        moves: list[tuple[int, list[str]]] = []
        for leaf in list(self.leaves(top)):
            spelled = [str(component[1]) for component in self.components(leaf, top)]
            for rule in rules:
                moved = rule.apply(spelled)
                if moved is not None:
                    moves.append((leaf, moved))
                    break
        for rule in rules:
            if not rule.used:
                raise self._unused(rule, top)
        for leaf, _ in moves:
            self._detach(leaf, top)
        self._spelled.clear()
        for leaf, path in moves:
            self._attach(leaf, top, path)

    def _unused(self, rule: _Rename, top: int) -> Exception:
        try:
            resolve(self._tree, rule.text, None if top == self._tree.top else top)
        except PathNotFoundError as error:  # it names what is near
            return type(error)(f"rename: {error}")
        return InvalidArgumentError(
            f"rename: nothing that is loaded is left at {rule.text!r}; of several rules the first "
            "that matches applies")

    def _detach(self, number: int, top: int) -> None:
        """Takes a leaf out, and the nodes above it that nothing is left in."""
        while number != top:
            place = self._places.get(number)
            parent = self.records[number].parent if place is None else place[0]
            del self.children[parent][self.component(number)]
            if self.children[parent]:
                return
            number = parent

    def _attach(self, leaf: int, top: int, path: list[str]) -> None:
        parent = top
        for name in path[:-1]:
            parent = self._node(parent, name, path)
        self._add(leaf, parent, path[-1], path)

    def _node(self, parent: int, name: str, path: list[str]) -> int:
        for child in self.spelled(parent).get(name, ()):
            if self.is_node(child):
                return child
        number = len(self.records)
        self.records.append(cast(Record, SimpleNamespace(
            kind=NODE, parent=parent, component=(KEY, name), container=1, variable_types="")))
        self.children[number] = {}
        self._add(number, parent, name, path)
        return number

    def _add(self, number: int, parent: int, name: str, path: list[str]) -> None:
        alike = self.spelled(parent).setdefault(name, [])
        if alike:
            raise InvalidArgumentError(
                f"rename: {path_text([(KEY, name) for name in path])!r} is the place of another "
                "leaf already")
        alike.append(number)
        self.children[parent][(KEY, name)] = number
        self._places[number] = (parent, (KEY, name))


class _Rename:
    """One rule: a pattern and what it becomes. Wildcards stand for the same text on both sides, in
    order; what lies below the pattern's place moves with it."""

    def __init__(self, old: str, new: str) -> None:
        for path in (old, new):
            if not isinstance(path, str) or not path:
                raise InvalidArgumentError(
                    f"rename is a dict from stored paths to paths in `like`, not {brief(path)}")
        self.text = old
        self.used = False
        pattern, kinds = "", []
        for kind, text, wild in PathPattern(old).components:
            kinds += _kinds_of(kind, text, wild)
            pattern += _regex_of(kind, text, wild)
        self._pattern = re.compile(pattern + f"((?:{_BEFORE}[^{_BEFORE}]*)*)", re.DOTALL)
        self._template: list[str | None] = []  # text, and None for what a wildcard stands for
        found: list[str] = []
        for kind, text, wild in PathPattern(new).components:
            found += _kinds_of(kind, text, wild)
            self._template += _template_of(kind, text, wild)
        if found != kinds:
            raise InvalidArgumentError(
                f"rename: {old!r} and {new!r} need the same wildcards in the same order")

    def apply(self, spelled: list[str]) -> list[str] | None:
        match = self._pattern.fullmatch("".join([_BEFORE + name for name in spelled]))
        if match is None:
            return None
        self.used = True
        *taken, below = match.groups()
        parts = iter(taken)
        path = "".join([next(parts) if text is None else text for text in self._template]) + below
        return path.split(_BEFORE)[1:]


def _kinds_of(kind: int, text: str, wild: list[int]) -> list[str]:
    return ["**"] if kind == _ANY_DEPTH else [text[at] for at in wild]


def _regex_of(kind: int, text: str, wild: list[int]) -> str:
    if kind == _ANY_DEPTH:
        return f"((?:{_BEFORE}[^{_BEFORE}]*)*?)"
    some = {"*": f"([^{_BEFORE}]*)", "?": f"([^{_BEFORE}])"}
    return _BEFORE + "".join([some[char] if at in wild else re.escape(char)
                              for at, char in enumerate(text)])


def _template_of(kind: int, text: str, wild: list[int]) -> list[str | None]:
    if kind == _ANY_DEPTH:
        return [None]
    return [_BEFORE, *[None if at in wild else char for at, char in enumerate(text)]]
