# SPDX-License-Identifier: Apache-2.0
"""Other names, and other arrays, for what is stored: `rename=` of loads, exports and patches.

`rename` is a dict, a function, a rule of this module, or a list of these, of which each sees the
names that those before it gave:

    from stepwell.rename import Fuse, Split, Transpose

    to_hugging_face = [
        Split("layers/**", "layers/{}/**"),                   # scanned: one array for all layers
        Transpose("**/kernel"),
        Fuse(["layers/*/attn/q/kernel", "layers/*/attn/k/kernel", "layers/*/attn/v/kernel"],
             "layers/*/attn/qkv/kernel", sizes=[64, 16, 16]),
        {"layers/*/attn/qkv/kernel": "model.layers.*.self_attn.qkv_proj.weight",
         "embed/embedding": "model.embed_tokens.weight"},
    ]
    store.export(900, "model.safetensors", to="safetensors", rename=to_hugging_face)

A dict goes from paths and globs to paths. Wildcards stand for the same text on both sides, in
order; a path takes all that is below it; of several that match a name the first counts. A function
takes a name, components joined with "/", and returns the new one, or None to leave it out. What no
rule takes keeps its name; a rule that takes nothing is an error.

The rules only move elements, so no array is ever whole in memory because of them.
`inverse(rules)` gives the rules of the way back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._mapping import Tensor, cut, joined, stacked, transposed, unstacked
from ._renaming import (MARK, NUMBER, Made, Named, Names, NothingMatchesError, Rename, Rule,
                        axis_of, check_alike, check_wildcards, checked_sizes, checked_used,
                        joined_text, moved_names, numbered_pattern, pattern_of, patterns_of,
                        rank_of, rules_of, shown_text)
from ._text import counted
from .errors import InvalidArgumentError

__all__ = ["Fuse", "Rename", "Rule", "Split", "Stack", "Transpose", "Unfuse", "inverse"]


class Transpose(Rule):
    """Transposes arrays, which keep their names: a kernel of Flax is a weight of Hugging Face.

    path: a path or glob, as "**/kernel".
    axes: as numpy.transpose takes them; None: in reverse order.
    """

    def __init__(self, path: str, axes: Sequence[int] | None = None) -> None:
        self._path = pattern_of(path, "Transpose")
        self._axes = None if axes is None else tuple(axes)

    def __repr__(self) -> str:
        return f"Transpose({self._path.text!r}, {self._axes})"

    def _apply(self, named: Named) -> Named:
        made = {}
        for names, tensor in named.items():
            if self._path.match(names) is None:
                made[names] = tensor
                continue
            rank = rank_of(tensor, names, self)
            axes = tuple(reversed(range(rank))) if self._axes is None else self._axes
            if sorted([axis % rank if rank else axis for axis in axes]) != list(range(rank)):
                raise InvalidArgumentError(
                    f"rename: {self!r} does not fit {joined_text(names)!r} of "
                    f"{counted(rank, 'axis')}")
            made[names] = transposed(tensor, [axis % rank for axis in axes])
        return checked_used(made, named, self._path)

    def _inverse(self) -> Rule:
        axes = self._axes
        if axes is None:
            return self
        ordered = [axis % len(axes) for axis in axes]
        return Transpose(self._path.text, [ordered.index(axis) for axis in range(len(axes))])


class Split(Rule):
    """Takes arrays apart along an axis, which goes: an array of scanned layers becomes one for
    each.

    path: a path or glob, as "layers/**".
    to: what they become, with `{}` where the number goes, as "layers/{}/**"; else as in a dict.
    """

    def __init__(self, path: str, to: str, axis: int = 0) -> None:
        self._path = pattern_of(path, "Split")
        self._to = numbered_pattern(to, "Split")
        self._axis = axis
        check_wildcards(self._path, self._to)

    def __repr__(self) -> str:
        return f"Split({self._path.text!r}, {shown_text(self._to)!r}, {self._axis})"

    def _apply(self, named: Named) -> Named:
        made = Made()
        for names, tensor in named.items():
            target = moved_names(self._path, self._to, names)
            if target is None:
                made.add(names, tensor)
                continue
            axis = axis_of(tensor, names, self, self._axis)
            for number, part in enumerate(unstacked(tensor, axis)):
                made.add(tuple([name.replace(MARK, str(number)) for name in target]), part)
        return checked_used(made.named, named, self._path)

    def _inverse(self) -> Rule:
        return Stack(shown_text(self._to), self._path.text, self._axis)


class Stack(Rule):
    """Makes one array of several, along a new axis: the inverse of `Split`.

    path: a path or glob with `{}` for the number, as "layers/{}/**". There must be all numbers
        from 0 on, without leading zeros.
    to: what they become, as in a dict.
    """

    def __init__(self, path: str, to: str, axis: int = 0) -> None:
        before, _, after = numbered_pattern(path, "Stack").text.partition(MARK)
        self._path = pattern_of(before + "*" + after, "Stack")
        self._place = len(pattern_of(before + MARK, "Stack").wildcards)
        self._text = before + NUMBER + after
        self._to = pattern_of(to, "Stack")
        self._axis = axis
        check_wildcards(self._to, pattern_of(before + MARK + after, "Stack"))

    def __repr__(self) -> str:
        return f"Stack({self._text!r}, {self._to.text!r}, {self._axis})"

    def _apply(self, named: Named) -> Named:
        groups: dict[Names, dict[int, Tensor]] = {}
        made = Made()
        for names, tensor in named.items():
            found = self._path.match(names)
            number = found and found[0][self._place][0]
            if found is None or number is None or not re.fullmatch("0|[1-9][0-9]*", number):
                made.add(names, tensor)
                continue
            taken, length = found
            del taken[self._place]
            axis_of(tensor, names, self, self._axis, more=1)
            groups.setdefault((*self._to.fill(taken), *names[length:]), {})[int(number)] = tensor
        for names, group in groups.items():
            if sorted(group) != list(range(len(group))):
                raise InvalidArgumentError(
                    f"rename: {self!r} needs all numbers from 0 on for {joined_text(names)!r}; "
                    f"there are {', '.join(map(str, sorted(group)))}")
            tensors = [group[number] for number in range(len(group))]
            check_alike(self, names, tensors, None)
            made.add(names, stacked(tensors, self._axis % (len(tensors[0].shape) + 1)))
        if not groups:
            raise NothingMatchesError(self._path.text)
        return made.named

    def _inverse(self) -> Rule:
        return Split(self._to.text, self._text, self._axis)


class Fuse(Rule):
    """Joins arrays along an axis: query, key and value projections become one.

    paths: paths or globs of the parts, in order, with the same wildcards.
    to: the whole, as in a dict.
    axis: of the arrays as they are then; 0 is that of the outputs of a transposed kernel.
    sizes: the parts' extents along the axis: for `inverse`. None: they are equal.
    """

    def __init__(self, paths: Sequence[str], to: str, axis: int = 0,
                 sizes: Sequence[int] | None = None) -> None:
        self._paths = patterns_of(paths, "Fuse")
        self._to = pattern_of(to, "Fuse")
        self._axis = axis
        self._sizes = checked_sizes(sizes, len(self._paths), "Fuse")
        for path in self._paths:
            check_wildcards(path, self._to)

    def __repr__(self) -> str:
        return f"Fuse({[path.text for path in self._paths]}, {self._to.text!r}, {self._axis})"

    def _apply(self, named: Named) -> Named:
        groups: dict[Names, dict[int, Tensor]] = {}
        made = Made()
        used: set[int] = set()
        for names, tensor in named.items():
            for place, path in enumerate(self._paths):
                target = moved_names(path, self._to, names)
                if target is not None:
                    axis_of(tensor, names, self, self._axis)
                    groups.setdefault(target, {})[place] = tensor
                    used.add(place)
                    break
            else:
                made.add(names, tensor)
        for names, group in groups.items():
            if len(group) < len(self._paths) and len(used) == len(self._paths):
                lacking = next(place for place in range(len(self._paths)) if place not in group)
                raise InvalidArgumentError(
                    f"rename: for {joined_text(names)!r} there is nothing at "
                    f"{self._paths[lacking].text!r}")
        unused = [path for place, path in enumerate(self._paths) if place not in used]
        if unused:
            raise NothingMatchesError(unused[0].text)
        for names, group in groups.items():
            tensors = [group[place] for place in range(len(self._paths))]
            axis = self._axis % len(tensors[0].shape)
            check_alike(self, names, tensors, axis)
            if self._sizes and [tensor.shape[axis] for tensor in tensors] != self._sizes:
                raise InvalidArgumentError(
                    f"rename: {self!r} has the sizes {self._sizes}, but the parts of "
                    f"{joined_text(names)!r} have {[tensor.shape[axis] for tensor in tensors]}")
            made.add(names, joined(tensors, axis))
        return made.named

    def _inverse(self) -> Rule:
        return Unfuse(self._to.text, [path.text for path in self._paths], self._axis, self._sizes)


class Unfuse(Rule):
    """Cuts arrays into parts along an axis: the inverse of `Fuse`.

    path: a path or glob of the whole. to: the parts, in order, as in a dict.
    sizes: the parts' extents along the axis; None: they are equal.
    """

    def __init__(self, path: str, to: Sequence[str], axis: int = 0,
                 sizes: Sequence[int] | None = None) -> None:
        self._path = pattern_of(path, "Unfuse")
        self._to = patterns_of(to, "Unfuse")
        self._axis = axis
        self._sizes = checked_sizes(sizes, len(self._to), "Unfuse")
        for target in self._to:
            check_wildcards(self._path, target)

    def __repr__(self) -> str:
        return f"Unfuse({self._path.text!r}, {[to.text for to in self._to]}, {self._axis})"

    def _apply(self, named: Named) -> Named:
        made = Made()
        for names, tensor in named.items():
            found = self._path.match(names)
            if found is None:
                made.add(names, tensor)
                continue
            axis = axis_of(tensor, names, self, self._axis)
            extent, count = tensor.shape[axis], len(self._to)
            sizes = self._sizes or [extent // count] * count
            if sum(sizes) != extent:
                raise InvalidArgumentError(
                    f"rename: {self!r} cannot cut {joined_text(names)!r}: {extent} elements into "
                    f"{self._sizes or f'{count} equal parts'}")
            taken, length = found
            start = 0
            for target, size in zip(self._to, sizes, strict=True):
                made.add((*target.fill(taken), *names[length:]),
                         cut(tensor, axis, start, start + size))
                start += size
        return checked_used(made.named, named, self._path)

    def _inverse(self) -> Rule:
        return Fuse([to.text for to in self._to], self._path.text, self._axis, self._sizes)


def inverse(rename: Rename) -> list[Rule]:
    """The rules of the way back, e.g. for a load of what was exported with `rename`.
    InvalidArgumentError for a function."""
    return [rule._inverse() for rule in reversed(rules_of(rename))]
