# SPDX-License-Identifier: Apache-2.0
"""Bringing a tree in memory from one step to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, SupportsIndex, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds

from . import _stepwell
from ._lifetime import OpenStore
from ._load.commit import commit_of, means
from ._load.device_placement import (Box, Boxes, Slot, Target, copies_of, place, read_slots,
                                     same)
from ._load.like import Fit, Matcher, is_abstract
from ._load.plans import build
from ._load.source import Source
from ._pytree.records import ARRAY, PathLike
from ._pytree.tree import check_called
from ._runtime.arguments import check_path, step_number
from ._runtime.gc_pause import paused
from ._stepwell import LoadStats, Record, StepTree
from .errors import InvalidArgumentError, Mismatch, MismatchError, StepNotFoundError

_SHARING_WORK_MAX = 10_000  # for NumPy's search for memory that two arrays share


def update(self: OpenStore, tree: Any, since: SupportsIndex, to: SupportsIndex | None = None,
           path: PathLike | None = None) -> Any:
    """Brings a tree that holds the step `since` to the step `to` (None: the newest), and returns
    it. Only what differs between the two steps is read, chunk by chunk; of a chunk that is stored
    as differences (`open(delta=True)`), only the differences behind the step `since`:

        params = store.load(100, "params")
        params = store.update(params, since=100, path="params")

    NumPy arrays are written in place, and stay the same objects. A jax.Array that changed is
    replaced by one with the same sharding; one that did not is the same object. Python values and
    NumPy scalars that changed are replaced; objects with get_state and set_state get their state.
    `to` may be an older step as well.

    The tree must be what `load(since, path, like=tree)` gives: each part of it that changed is
    compared, by a hash, with what the step `since` has there. What did not change is not looked at.
    On any error the tree is what it was, since everything is read, checked and decoded before
    anything is written. Until then as much as is read, as it is stored, is kept in memory; of the
    jax arrays that changed, a copy on the host, too.

    since: best a number of `follow`, or `store[step].step`, which know what commit they are. With a
        plain int, a step that was saved anew under it is taken for the one that the tree holds.
    path: the part of the step that the tree is, a leaf or a node, as in `load`.

    Raises StepNotFoundError where the step `since` is not in the store any more, or another one was
    saved under its number: load a step then. InvalidArgumentError names a leaf that does not hold
    `since`, a NumPy array that changed and is read-only or shares its memory with another leaf, and
    a leaf without a value: an abstract one, or a jax.Array that was donated. MismatchError: the
    steps have other leaves, or other dtypes and shapes, or the tree has. CorruptionError and
    PathNotFoundError as in `load`.
    """
    check_called(tree, "tree")
    check_path(path)
    target = None if to is None else step_number(to)
    self._check()
    self._backend.whole("updating a tree")
    before, after = _since(self, since), self._source(target)
    if before.step == after.step:
        return tree
    read: list[LoadStats] = []
    before.account = after.account = read.append
    loaded = after.all_or_none(lambda: _Update(before, after, path).run(tree))
    total = LoadStats()
    for stats in read:
        total += stats
    self._account(total)
    return loaded


def _since(store: OpenStore, step: SupportsIndex) -> Source:
    try:
        source = store._source(step_number(step))
        if not means(step, commit_of(source)):
            raise StepNotFoundError(f"step {source.step} was saved anew since then")
        return source
    except StepNotFoundError as error:
        raise StepNotFoundError(f"{error}. Without it nothing tells what has changed since: load "
                                "a step") from None


class _LeafMatcher(Matcher):
    """A Matcher that also keeps the leaf of each slot."""

    at_once = False

    def __init__(self, tree: StepTree, step: int) -> None:
        super().__init__(tree, step, Fit())
        self.leaves: dict[int, Any] = {}

    def _match_leaf(self, like: Any, number: int, path: Any, in_equinox: bool) -> Any:
        plan = super()._match_leaf(like, number, path, in_equinox)
        if type(plan) is int:
            self.leaves[plan] = like
        return plan


class _Array(NamedTuple):
    """A NumPy array of the tree."""

    array: np.ndarray[Any, Any]
    number: int  # of the leaf
    changes: bool


class _Sorted:
    """The slots of a load, by how they get what the step has."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}  # leaves that stay as they are, or the same objects
        self.in_place: list[int] = []  # NumPy arrays that the engine writes
        self.copied: list[int] = []  # jax arrays
        self.loaded: list[int] = []  # everything else that changed
        self.arrays: list[_Array] = []


class _Update:
    def __init__(self, before: Source, after: Source, path: PathLike | None) -> None:
        self._steps = before.step, after.step
        self._all = after
        with paused():
            (self._before, one), (self._after, other) = (
                source.select(path, whole=True) for source in (before, after))
            if one.number is None or other.number is None:
                raise InvalidArgumentError("update takes the path of a node or of a leaf, not a "
                                           "glob")
            self._top = other.number
        self._changed = self._compared(one.number)  # numbers of leaves, after: before

    def _compared(self, top: int) -> dict[int, int]:
        before, after = self._before.tree, self._after.tree
        found = _stepwell.compare_steps(before, before.leaves(top), after, after.leaves(self._top),
                                        elements=False, may_read=False)
        k, n = self._steps
        bad = [Mismatch(before.text(leaf), f"only step {k} has it", "missing")
               for leaf in found.removed]
        bad += [Mismatch(after.text(leaf), f"only step {n} has it", "unexpected")
                for leaf in found.added]
        for change in found.changed:
            one, other = before.records[change.before], after.records[change.after]
            if _type_of(one) != _type_of(other):
                is_shape = one.kind == other.kind == ARRAY and one.shape != other.shape
                bad.append(Mismatch(
                    after.text(change.after), f"{before.describe(change.before)} in step {k}, "
                    f"{after.describe(change.after)} in step {n}",
                    "shape" if is_shape else "dtype"))
        if bad:
            raise MismatchError(f"steps {k} and {n} have other leaves:", bad,
                                f"update changes contents alone: load step {n}")
        return {change.after: change.before for change in found.changed}

    def run(self, tree: Any) -> Any:
        with paused():
            matcher = _LeafMatcher(self._after.tree, self._steps[1])
            plan = self._plan(matcher, tree)
            found = self._sort(matcher)
            self._check(found.arrays)
        slots, values = matcher.slots, found.values
        copied = {i: copies_of(values[i], _target(slots[i])) for i in found.copied}
        copies = self._read([(slots[i].number, boxes) for i, boxes in copied.items()])
        in_place = self._read([(slots[i].number, {_whole(values[i]): values[i]})
                               for i in found.in_place])
        loaded = dict(zip(found.loaded,
                          read_slots(self._after, [slots[i] for i in found.loaded]), strict=True))
        copies.apply()
        late: list[tuple[Any, Any]] = []  # arrays that are written by NumPy, and what
        for i, boxes in copied.items():
            values[i] = place(_target(slots[i]), boxes)
        for i, value in loaded.items():
            if isinstance(values.get(i), np.ndarray):
                late.append((values[i], value))
            else:
                values[i] = value
        with paused():
            states: list[Callable[[], Callable[[], object]]] = []
            built = build(plan, [values[i] for i in range(len(slots))], states)

        def write() -> Callable[[], object]:
            in_place.apply()
            _copy_all(late)
            return lambda: None

        self._all.afterwards += [*states, write]
        return built

    def _plan(self, matcher: _LeafMatcher, tree: Any) -> Any:
        try:
            return matcher.plan(tree, self._top)
        except MismatchError as error:
            raise MismatchError(f"the tree does not hold step {self._steps[0]}:",
                                error.mismatches, f"load step {self._steps[1]}") from None

    def _sort(self, matcher: _LeafMatcher) -> _Sorted:
        found = _Sorted()
        for i, slot in enumerate(matcher.slots):
            if i not in matcher.leaves:  # of an object's state
                found.loaded.append(i)
                continue
            leaf, changes = matcher.leaves[i], slot.number in self._changed
            if is_abstract(leaf) or (slot.target is not None and _is_deleted(leaf)):
                raise InvalidArgumentError(f"{self._name(slot.number)} of the tree has no value")
            found.values[i] = leaf
            as_stored = slot.convert is same and self._after.tree.records[
                slot.number].kind == ARRAY
            if isinstance(leaf, np.ndarray):
                found.arrays.append(_Array(leaf, slot.number, changes))
                as_stored = as_stored and leaf.dtype.isnative
            if changes and not as_stored:
                found.loaded.append(i)
            elif changes and isinstance(leaf, np.ndarray):
                found.in_place.append(i)
            elif changes:
                (found.copied if hasattr(leaf, "addressable_shards") else found.loaded).append(i)
        return found

    def _check(self, arrays: list[_Array]) -> None:
        """Raises for arrays that are to change, and cannot, or whose change would be another
        leaf's, too."""
        around: list[tuple[int, _Array]] = []  # where the memory of each ends
        for each in sorted(arrays, key=lambda each: byte_bounds(each.array)[0]):
            name = self._name(each.number)
            if each.changes and not each.array.flags.writeable:
                raise InvalidArgumentError(
                    f"the array {name} is read-only: load step {self._steps[1]}")
            if not each.array.size:
                continue
            if each.changes and _overlaps_itself(each.array):
                raise InvalidArgumentError(f"elements of the array {name} share memory: load step "
                                           f"{self._steps[1]}")
            begin, end = byte_bounds(each.array)
            around = [(stop, other) for stop, other in around if stop > begin]
            for _, other in around:
                if (each.changes or other.changes) and _share(each.array, other.array):
                    raise InvalidArgumentError(f"the arrays {self._name(other.number)} and {name} "
                                               f"share memory: load step {self._steps[1]}")
            around.append((end, each))

    def _name(self, number: int) -> str:
        return repr(self._after.tree.text(number))

    def _read(self, leaves: list[tuple[int, Boxes]]) -> _stepwell.Update:
        """Reads what brings boxes of leaves to the step."""
        update = _stepwell.Update(self._before.tree, self._after.tree, [
            ((self._changed[number], number),
             [(array, [start for start, _ in box], [stop for _, stop in box])
              for box, array in boxes.items()])
            for number, boxes in leaves])
        self._after.account(update.stats)
        return update


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Returns true if two elements may lie at one place, as in a broadcast array."""
    span = array.itemsize
    for stride, extent in sorted((abs(stride), extent) for stride, extent
                                 in zip(array.strides, array.shape, strict=True) if extent > 1):
        if stride < span:
            return True
        span += stride * (extent - 1)
    return False


def _copy_all(arrays: list[tuple[Any, Any]]) -> None:
    """Copies each second array into the first. Ctrl-C comes when all of them are."""
    interrupted, done = None, 0
    while done < len(arrays):
        try:
            while done < len(arrays):
                np.copyto(*arrays[done])
                done += 1
        except KeyboardInterrupt as error:  # the copy under way is made again
            interrupted = error
    if interrupted is not None:
        raise interrupted


def _is_deleted(leaf: Any) -> bool:
    """Returns true for a jax array that was donated."""
    return hasattr(leaf, "is_deleted") and bool(leaf.is_deleted())


def _target(slot: Slot) -> Target:
    assert slot.target is not None  # of a jax array
    return slot.target


def _type_of(record: Record) -> tuple[Any, ...]:
    if record.kind == ARRAY:
        return record.kind, record.prng_impl, record.dtype, record.shape
    return record.kind, record.value_type


def _whole(array: np.ndarray[Any, Any]) -> Box:
    return tuple([(0, extent) for extent in array.shape])


def _share(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=cast(Any, _SHARING_WORK_MAX))
    except np.exceptions.TooHardError:
        return True
