# SPDX-License-Identifier: Apache-2.0
r"""The path language: `params/*/kernel`, `a\/b/0`, ("a/b", 0).

A text path is components joined with "/"; a backslash before any of / * ? [ \ takes it literally.
A component with * or ? matches names; ** alone matches any number of components. An unescaped [ is
reserved. A tuple is exact: each str or int is one component, nothing is special in it. Components
match by spelling; where several stored ones are spelled alike, an int in a tuple means a key or
index, a str a name. With only the item `state` in the step its name may be left out; otherwise the
first component is the item.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import AmbiguousPathError, InvalidArgumentError, PathNotFoundError
from .records import ROOT, StoredTree
from .tree import ATTRIBUTE, INDEX, INT_KEY, KEY, Component

PathLike = str | tuple[str | int, ...]


class Pattern(NamedTuple):
    """One component of a parsed path: a literal, a compiled glob, or "**"."""

    literal: Component | None
    regex: re.Pattern[str] | None = None
    typed: bool = False  # from a tuple: the type of the literal breaks ties

    @property
    def is_deep(self) -> bool:
        return self.literal is None and self.regex is None


class Selection(NamedTuple):
    """What a path names: one record, or for a glob the leaves that it takes."""

    number: int | None
    leaves: list[int]


def parse(path: PathLike) -> list[Pattern]:
    """Raises InvalidArgumentError for malformed paths."""
    if isinstance(path, tuple):
        return [_exact(part, path) for part in path]
    if not isinstance(path, str):
        raise InvalidArgumentError(f"a path is a str or a tuple of str and int, not {path!r}")
    return [_component(part, path) for part in _split(path)] if path else []


def _exact(part: Any, path: PathLike) -> Pattern:
    if isinstance(part, str):
        return Pattern((KEY, part), typed=True)
    try:
        return Pattern((INDEX, operator.index(part)), typed=True)
    except TypeError:
        raise InvalidArgumentError(f"path {path!r}: {part!r} is neither str nor int") from None


def _split(path: str) -> Iterator[list[tuple[str, bool]]]:
    """Components as lists of (character, escaped)."""
    component: list[tuple[str, bool]] = []
    characters = iter(path)
    for character in characters:
        if character == "\\":
            escaped = next(characters, None)
            if escaped is None or escaped not in "/*?[\\":
                raise InvalidArgumentError(
                    f"path {path!r}: a backslash stands before one of / * ? [ \\, not "
                    + ("at the end" if escaped is None else f"before {escaped!r}")
                )
            component.append((escaped, True))
        elif character == "/":
            yield component
            component = []
        else:
            component.append((character, False))
    yield component


def _component(characters: list[tuple[str, bool]], path: str) -> Pattern:
    if ("[", False) in characters:
        raise InvalidArgumentError(f"path {path!r}: [ is reserved; write \\[ for the character")
    if characters == [("*", False), ("*", False)]:
        return Pattern(None)
    if ("*", False) in characters or ("?", False) in characters:
        wild = {"*": ".*", "?": "."}
        text = "".join([re.escape(c) if escaped else wild.get(c, re.escape(c))
                        for c, escaped in characters])
        return Pattern(None, re.compile(text, re.DOTALL))
    return Pattern((KEY, "".join([c for c, _ in characters])))


Reading = tuple[str, list[list[Component]]]


def _meanings(literal: Component) -> list[Component]:
    """What is spelled like `literal`."""
    text = str(literal[1])
    found: list[Component] = [(KEY, text), (ATTRIBUTE, text)]
    digits = text[1:] if text[:1] == "-" else text
    if digits.isdecimal() and len(digits) < 20:
        number = int(text)
        if str(number) == text and -(2**63) <= number < 2**63:
            found += [(INT_KEY, number)] + ([(INDEX, number)] if number >= 0 else [])
    return found


def readings(path: PathLike | None, items: list[str],
             above: list[Component] | None = None) -> tuple[list[Reading], bool]:
    """Where the records lie that `path` can mean in a step with these items, and whether it is a
    glob: then it is everything below. `above`: where the path starts, its item first. No readings:
    it may be anything."""
    patterns = [] if path is None else parse(path)
    fixed = list(itertools.takewhile(lambda pattern: pattern.literal is not None, patterns))
    levels = [_meanings(pattern.literal) for pattern in fixed if pattern.literal is not None]
    is_glob = len(fixed) < len(patterns)
    if above:
        return [(above[0][1], [[component] for component in above[1:]] + levels)], is_glob
    found: list[Reading] = []
    if items == ["state"]:
        if is_glob and not levels:
            return [], True
        found.append(("state", levels))
    if levels and (name := levels[0][0][1]) in items:
        found.append((name, levels[1:]))
    return found, is_glob


def _children(tree: StoredTree, number: int, pattern: Pattern) -> list[int]:
    if pattern.regex is not None:
        return [child for name, children in tree.spelled(number).items()
                if pattern.regex.fullmatch(name) for child in children]
    assert pattern.literal is not None
    if pattern.typed:
        return tree.find(number, pattern.literal)
    return tree.spelled(number).get(str(pattern.literal[1]), [])


def _match(tree: StoredTree, number: int, patterns: list[Pattern]) -> list[int]:
    """Records below `number` that the patterns take, in key order."""
    found: set[int] = set()
    todo = [(number, 0)]
    seen = set(todo)
    while todo:
        where, index = todo.pop()
        if index == len(patterns):
            found.add(where)
            continue
        pattern = patterns[index]
        if pattern.is_deep:
            following = [(where, index + 1)]
            following += [(child, index) for child in tree.children.get(where, {}).values()]
        else:
            following = [(child, index + 1) for child in _children(tree, where, pattern)]
        for state in following:
            if state not in seen:
                seen.add(state)
                todo.append(state)
    return sorted(found)


def resolve(tree: StoredTree, path: PathLike | None, step: int,
            below: int | None = None) -> Selection:
    """What `path` names in a step's tree; `below`: relative to that record, no item name."""
    patterns = [] if path is None else parse(path)
    if below is not None:
        readings = [below]
    else:
        readings = [tree.top, ROOT] if tree.only_state else [ROOT]
    if not patterns:
        return Selection(readings[0], [])
    is_glob = any(pattern.literal is None for pattern in patterns)
    matches = [_match(tree, start, patterns) for start in readings]
    if is_glob:
        # Inside the item first; a pattern for the item's own name only where that finds nothing.
        found = next((m for m in matches if m), [])
        leaves = sorted({leaf for number in found for leaf in tree.leaves(number)})
        if not leaves:
            raise PathNotFoundError(_unknown(tree, path, step, below))
        return Selection(None, leaves)
    numbers = sorted({number for m in matches for number in m})
    if not numbers:
        raise PathNotFoundError(_unknown(tree, path, step, below))
    if len(numbers) > 1:
        raise AmbiguousPathError(_ambiguous(tree, path, step, numbers))
    return Selection(numbers[0], [])


_TYPE_NAMES = {1: "int key", 2: "index", 3: "key", 4: "attribute"}


def _ambiguous(tree: StoredTree, path: PathLike | None, step: int, numbers: list[int]) -> str:
    readings = []
    for number in numbers:
        *_, (kind, name) = tree.components(number)
        full = "/".join(["item"] + [_TYPE_NAMES[k] for k, _ in tree.components(number)[1:]])
        readings.append(f"{_full_text(tree, number)!r} ({full})")
    return (f"step {step}: path {path!r} is ambiguous: {' or '.join(readings)}; a tuple with int "
            "for keys and indices and str for names, or the item's name in front, tells them apart")


def _full_text(tree: StoredTree, number: int) -> str:
    return tree.relative_text(number, ROOT)


def _unknown(tree: StoredTree, path: PathLike | None, step: int, below: int | None) -> str:
    import difflib

    start = tree.top if below is None else below
    text = "/".join(map(str, path)) if isinstance(path, tuple) else str(path)
    candidates: list[str] = []
    stack = [start]
    while stack and len(candidates) < 5000:
        for child in tree.children.get(stack.pop(0), {}).values():
            candidates.append(tree.relative_text(child, start))
            stack.append(child)
    near = difflib.get_close_matches(text, candidates, n=3, cutoff=0.5)
    if not near:  # perhaps only the last component is known, somewhere else
        last = text.rsplit("/", 1)[-1]
        near = [c for c in candidates if c.rsplit("/", 1)[-1] == last][:3]
    if near:
        hint = "nearest: " + ", ".join(map(repr, near))
    elif candidates:
        names = [tree.relative_text(child, start) for child in tree.children[start].values()]
        shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
        hint = f"there are: {shown}"
    else:
        hint = "there is nothing below"
    return f"step {step} has nothing at {path!r}; {hint}"
