# SPDX-License-Identifier: Apache-2.0
"""How the rules of `rename=` take names to names: dicts, functions, and what all rules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ._mapping import Tensor
from ._stepwell import PathPattern
from ._text import brief, counted
from .errors import InvalidArgumentError

Names = tuple[str, ...]
Named = dict[Names, Tensor]

NUMBER = "{}"
MARK = "\0"  # for {} in a pattern that is filled: no name has it


class NothingMatchesError(Exception):
    """A pattern takes no name. `pattern`: its text."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.pattern = pattern


class Rule(ABC):
    """One step of a `rename`; see the module."""

    @abstractmethod
    def _apply(self, named: Named) -> Named:
        """Raises NothingMatchesError."""

    @abstractmethod
    def _inverse(self) -> Rule: ...


Rename = (Mapping[str, str] | Callable[[str], str | None] | Rule
          | Sequence[Mapping[str, str] | Callable[[str], str | None] | Rule])


class _Paths(Rule):
    """A dict."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        for each in [each for pair in paths.items() for each in pair]:
            if not isinstance(each, str) or not each:
                raise InvalidArgumentError(
                    f"rename is a dict from paths to paths, not {brief(each)}")
        self._paths = dict(paths)
        self._patterns = [(pattern_of(one, ""), pattern_of(other, ""))
                          for one, other in paths.items()]
        for one, other in self._patterns:
            check_wildcards(one, other)

    def _apply(self, named: Named) -> Named:
        made = Made()
        unused = dict.fromkeys(range(len(self._patterns)))
        for names, tensor in named.items():
            for number, (one, other) in enumerate(self._patterns):
                target = moved_names(one, other, names)
                if target is not None:
                    unused.pop(number, None)
                    made.add(target, tensor)
                    break
            else:
                made.add(names, tensor)
        for number in unused:
            raise NothingMatchesError(self._patterns[number][0].text)
        return made.named

    def _inverse(self) -> Rule:
        return _Paths({other: one for one, other in self._paths.items()})


class _Function(Rule):
    def __init__(self, function: Callable[[str], str | None]) -> None:
        self._function = function

    def _apply(self, named: Named) -> Named:
        made = Made()
        for names, tensor in named.items():
            name = self._function(joined_text(names))
            if name is None:
                continue
            if not isinstance(name, str) or not name:
                raise InvalidArgumentError(
                    f"rename: the function returned {brief(name)} for {joined_text(names)!r}, not "
                    "a name")
            made.add(names if name == joined_text(names) else tuple(name.split("/")), tensor)
        return made.named

    def _inverse(self) -> Rule:
        raise InvalidArgumentError(
            "rename: a function has no inverse that could be known; give a dict, or one more "
            "function for the way back")


class Made:
    """Names that are given once each."""

    def __init__(self) -> None:
        self.named: Named = {}

    def add(self, names: Names, tensor: Tensor) -> None:
        if names in self.named:
            raise InvalidArgumentError(
                f"rename: {joined_text(names)!r} is the place of another leaf already")
        self.named[names] = tensor


def rules_of(rename: Rename | None) -> list[Rule]:
    """InvalidArgumentError for what is none."""
    if rename is None:
        return []
    listed = list(rename) if isinstance(rename, Sequence) and not isinstance(
        rename, (str, bytes)) else [rename]
    rules: list[Rule] = []
    for each in listed:
        if isinstance(each, Rule):
            rules.append(each)
        elif isinstance(each, Mapping):
            rules.append(_Paths(each))
        elif callable(each):
            rules.append(_Function(each))
        else:
            raise InvalidArgumentError(
                "rename must be a dict, a function, a rule of stepwell.rename, or a list of these, "
                f"not {brief(each)}")
    return rules


def renamed(rules: Iterable[Rule], named: Named,
            nothing_at: Callable[[str], object] = lambda pattern: None) -> Named:
    """Applies the rules one after the other. `nothing_at` may raise a better error for a pattern of
    the first rule that matches nothing."""
    for place, rule in enumerate(rules):
        try:
            named = rule._apply(named)
        except NothingMatchesError as nothing:
            if place == 0:
                nothing_at(nothing.pattern)
            raise InvalidArgumentError(
                f"rename: nothing that is loaded is left at {nothing.pattern!r}; of several rules "
                "the first that matches applies" if place == 0 else
                f"rename: after the rules before it, nothing is named {nothing.pattern!r}; there "
                f"are {_some(named)}") from None
    return named


def pattern_of(text: str, rule: str) -> PathPattern:
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"{rule} takes a path or glob, not {brief(text)}")
    return PathPattern(text)


def patterns_of(texts: Sequence[str], rule: str) -> list[PathPattern]:
    if isinstance(texts, str) or len(texts) < 2:
        raise InvalidArgumentError(f"{rule} takes a list of two paths or more, not {brief(texts)}")
    return [pattern_of(text, rule) for text in texts]


def numbered_pattern(text: str, rule: str) -> PathPattern:
    """A pattern with a mark for {}."""
    if not isinstance(text, str) or text.count(NUMBER) != 1:
        raise InvalidArgumentError(
            f'{rule} needs one {{}} for the number, as in "layers/{{}}/kernel", not {brief(text)}')
    return pattern_of(text.replace(NUMBER, MARK), rule)


def shown_text(pattern: PathPattern) -> str:
    return pattern.text.replace(MARK, NUMBER)


def check_wildcards(one: PathPattern, other: PathPattern) -> None:
    if one.wildcards != other.wildcards:
        raise InvalidArgumentError(
            f"rename: {shown_text(one)!r} and {shown_text(other)!r} need the same wildcards in the "
            "same order")


def checked_sizes(sizes: Sequence[int] | None, count: int, rule: str) -> list[int] | None:
    if sizes is None:
        return None
    if len(sizes) != count or any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"{rule} takes a size for each of the {count} parts, not "
                                   f"{list(sizes)}")
    return list(sizes)


def moved_names(one: PathPattern, other: PathPattern, names: Names) -> Names | None:
    found = one.match(names)
    return None if found is None else (*other.fill(found[0]), *names[found[1]:])


def checked_used(made: Named, named: Named, pattern: PathPattern) -> Named:
    """`made` of `named`: NothingMatchesError unless the pattern takes one of these."""
    if not any(pattern.match(names) is not None for names in named):
        raise NothingMatchesError(pattern.text)
    return made


def rank_of(tensor: Tensor, names: Names, rule: Rule) -> int:
    if tensor.dtype is None:
        raise InvalidArgumentError(f"rename: {rule!r} is for arrays, and {joined_text(names)!r} is "
                                   "none")
    return len(tensor.shape)


def axis_of(tensor: Tensor, names: Names, rule: Rule, axis: int, more: int = 0) -> int:
    rank = rank_of(tensor, names, rule) + more
    if not -rank <= axis < rank:
        raise InvalidArgumentError(
            f"rename: {rule!r} needs axis {axis}, but {joined_text(names)!r} has "
            f"{counted(rank - more, 'axis')}")
    return axis % rank


def check_alike(rule: Rule, names: Names, tensors: list[Tensor], axis: int | None) -> None:
    """Of one dtype, and of one shape but for the axis."""
    def kind(tensor: Tensor) -> Any:
        shape = list(tensor.shape)
        if axis is not None and axis < len(shape):
            shape[axis] = -1
        return tensor.dtype, shape

    for tensor in tensors[1:]:
        if kind(tensor) != kind(tensors[0]):
            raise InvalidArgumentError(
                f"rename: {rule!r} cannot make {joined_text(names)!r} of "
                f"{tensors[0].dtype}{list(tensors[0].shape)} and "
                f"{tensor.dtype}{list(tensor.shape)}")


def joined_text(names: Names) -> str:
    return "/".join(names)


def _some(named: Named) -> str:
    texts = [joined_text(names) for names in list(named)[:4]]
    return ", ".join(texts) + (", …" if len(named) > 4 else "") if texts else "none"
