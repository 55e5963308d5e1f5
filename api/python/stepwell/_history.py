# SPDX-License-Identifier: Apache-2.0
"""One leaf in many steps, as an array with a leading axis of steps."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, SupportsIndex

import numpy as np

from . import _stepwell
from ._lifetime import OpenStore
from ._load.slicing import BATCH_BYTES, Index, axes_of, boxes_of, read_slice
from ._load.source import in_batches
from ._load.specs import concrete, jax_here
from ._over_time import html_over_time, plot_over_time
from ._pytree.records import ARRAY, VALUE, PathLike, array_text
from ._pytree.sharding import transfers_allowed
from ._runtime.arguments import STEP_MAX, check_path, step_number, step_numbers
from ._stepwell import LoadStats, Selection, StepTree, ValueType, Wanted, decode_value
from ._text import brief, with_article
from ._views import statistics_of
from .errors import (InvalidArgumentError, Mismatch, MismatchError, MismatchKind,
                     PathNotFoundError, StepNotFoundError)

_STEPS_AT_ONCE = 256  # that are open at one time: each keeps records in memory
_NUMBERS: dict[ValueType, Any] = {
    ValueType.BOOL: np.bool_, ValueType.INT: np.int64, ValueType.FLOAT: np.float64,
    ValueType.COMPLEX: np.complex128}
EVERY: Final[Any] = slice(None)  # step, in an index
_SHOWN_MAX = 8  # steps that a message lists

Steps = Iterable[SupportsIndex] | slice | None


class History(NamedTuple):
    """A leaf over time, as `Store.history` returns it.

    steps: the numbers of the steps, in the order of `values`.
    values: an array whose first axis is that of the steps: shape (steps, *shape of the slice).
    """

    steps: tuple[int, ...]
    values: Any

    def plot(self, *names: str, ax: Any = None, **options: Any) -> Any:
        """Draws it over the steps with matplotlib, which must be installed (ImportError), and
        returns the `matplotlib.axes.Axes`.

        names: what is drawn, a line each. A number has "value", an array "min", "mean", "max" and
            "norm" of each step (of complex numbers those of the magnitudes), and statistics also
            "nonfinite" and "changed". None: the value, or min, mean and max.
        ax: the Axes to draw on; None: the current one (`matplotlib.pyplot.gca()`).
        options: those of `Axes.plot`, such as `color` or `marker`.
        """
        return plot_over_time(self.steps, self.values, names, ax, options)

    def _repr_html_(self) -> str:
        return html_over_time(self.steps, self.values)


def history(self: OpenStore, path: PathLike | None, steps: Steps = None,
            slice: Index | tuple[Index, ...] = None, like: Any = None,
            statistics: bool = False) -> History:
    """The leaf at `path` in many steps: `history("params/head/bias").values[i]` is what it was in
    the step `history(...).steps[i]`.

    Only the chunks that have the leaf, or its slice, are read, those of many steps at once; a chunk
    that several steps share is read once. The result is a NumPy array, with the leaf's dtype. Of a
    Python number it has one axis, and dtype bool, int64 (uint64 where only that holds them),
    float64 or complex128. Typed PRNG keys give their uint32 data. A path without an item's name
    means the item `state` also in steps that have other items.

    steps: None takes every step that has the leaf, ascending. Numbers are taken in their order, and
        each step must have the leaf. A slice of step numbers such as `slice(100, 200)` takes the
        steps from 100 on and before 200, with a step of n those whose distance from the first
        number is a multiple of n; each must have the leaf.
    slice: the part of the leaf, as NumPy's basic indices take it: ints, slices, `...`, or a tuple
        of these, such as `np.s_[0, :, ::2]`. None: all of it.
    like: says what `values` is, as in `load`, by one step's value: a jax.Array or
        jax.ShapeDtypeStruct, of the same shape and dtype, gives a jax.Array whose steps are
        replicated and whose other axes have the sharding of `like`; a jax.sharding.Sharding for one
        step's value does the same. A NumPy array gives NumPy. Values are read into memory of the
        host first. Dtypes are compared after JAX's canonicalization.
    statistics: True gives the leaf's statistics instead, and reads no array: `values` is a
        structured NumPy array, one record a step, with the float64 fields `min`, `max`, `sum`,
        `norm` and `changed`, the share of changed elements, and the int64 fields `elements` and
        `nonfinite`: `history(path, statistics=True).values["norm"]`. NaN stands for a number that
        is not known (`LeafStatistics`). With steps=None it takes the steps that have statistics.
        It excludes slice and like.

    With local disks it is collective.

    Raises StepNotFoundError for a step that is not there, such as a deleted one;
    PathNotFoundError, which names the steps without the leaf; MismatchError, which names the steps,
    where dtype or shape is not the same in all, or not that of `like`; InvalidArgumentError for a
    node, a glob, a leaf that is neither an array nor a number, and where statistics are asked for
    and a step has none, or no step; IndexError for the slice; CorruptionError.
    """
    check_path(path)
    if statistics:
        if slice is not None or like is not None:
            raise InvalidArgumentError("statistics are those of the whole leaf, without slice and "
                                       "like")
        return _statistics(self, chosen_steps(self, steps), path, gone_ok=steps is None)
    index = (...,) if slice is None else slice if isinstance(slice, tuple) else (slice,)
    numbers = chosen_steps(self, steps)
    if self._backend.collective_reads:
        found = _read_together(self, numbers, path, index, gone_ok=steps is None)
    else:
        found = _read_all(self, numbers, path, index, gone_ok=steps is None)
    return found if like is None else found._replace(values=_as_like(found, like, path))


def chosen_steps(store: OpenStore, steps: Steps) -> list[int]:
    """The numbers of the steps that are asked for."""
    if steps is not None and not isinstance(steps, slice):
        numbers = step_numbers(steps.tolist() if isinstance(steps, np.ndarray) else steps)
        if not numbers:
            raise InvalidArgumentError("steps has no step; None takes all that have the leaf")
        store._check()
        return numbers
    bounds = None if steps is None else _range_of(steps)
    numbers = [step for step in store.steps() if bounds is None or step in bounds]
    if numbers:
        return numbers
    if bounds is None:
        raise store._no_step()
    raise StepNotFoundError(f"{store.path!r} has no step in {bounds.start}:{bounds.stop}"
                            + (f":{bounds.step}" if bounds.step != 1 else ""))


def _range_of(steps: slice) -> range:
    start = 0 if steps.start is None else step_number(steps.start)
    stop = STEP_MAX + 1 if steps.stop is None else step_number(steps.stop)
    stride = 1 if steps.step is None else step_number(steps.step)
    if stride == 0:
        raise InvalidArgumentError("a slice of steps has a step of at least 1")
    return range(start, stop, stride)


# ---- leaves -------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """A leaf in one step."""

    step: int
    tree: StepTree
    number: int


class _Seen:
    """Which steps have the leaf that a path names, and as what."""

    def __init__(self, store: OpenStore, path: PathLike | None, gone_ok: bool) -> None:
        self._store = store
        self._path = path
        self._gone_ok = gone_ok
        self.lacking: list[int] = []
        self.steps: dict[str, list[int]] = {}  # by dtype and shape

    def add(self, step: int, selection: Selection) -> Leaf:
        """Raises InvalidArgumentError for what has no history."""
        tree, number = selection.tree, selection.number
        if number is None:
            raise InvalidArgumentError(f"history takes the path of one leaf; {self._path!r} is a "
                                       "glob")
        name = f"{tree.text(number) or 'the state'} of step {step}"
        if tree.is_node(number):
            raise InvalidArgumentError(f"history takes the path of one leaf; {name} is a node")
        record = tree.record(number)
        if record.kind == VALUE and record.value_type not in _NUMBERS:
            raise InvalidArgumentError(f"history takes arrays and numbers; {name} is "
                                       f"{with_article(tree.describe(number))}")
        self.steps.setdefault(tree.describe(number), []).append(step)
        return Leaf(step, tree, number)

    @property
    def are_fine(self) -> bool:
        return len(self.steps) == 1 and (self._gone_ok or not self.lacking)

    def check(self) -> None:
        """Raises where not every step that should have the leaf has it, or where it differs."""
        if self.lacking and (not self.steps or not self._gone_ok):
            step = self.lacking[-1]
            try:
                self._store._source(step).tree.resolve(self._path)
            except PathNotFoundError as error:
                if len(self.lacking) == 1:
                    raise
                raise PathNotFoundError(f"{_steps_text(self.lacking)} have nothing at "
                                        f"{self._path!r}: {error}") from None
        if len(self.steps) > 1:
            first, *others = self.steps.items()
            raise MismatchError(
                f"{self._path!r} has another dtype or shape in some steps: {first[0]} in "
                f"{_steps_text(first[1])}, but:",
                [Mismatch(_steps_text(steps), f"stored {what}", _kind_of(first[0], what))
                 for what, steps in others])


def _steps_text(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:_SHOWN_MAX]))
    more = len(steps) - _SHOWN_MAX
    return f"step {shown}" if len(steps) == 1 else (
        f"steps {shown}" + (f" and {more:,} more" if more > 0 else ""))


def _kind_of(one: str, other: str) -> MismatchKind:
    return "shape" if one.partition("[")[0] == other.partition("[")[0] else "dtype"


def leaves_of(store: OpenStore, numbers: Sequence[int], path: PathLike | None, gone_ok: bool
              ) -> Iterator[list[Leaf]]:
    """The leaf in the steps that have it, a few steps at a time. All have one dtype and shape;
    else, and where a step lacks the leaf that must have it, this raises at the end."""
    core = store._backend.whole("reading a history")
    seen = _Seen(store, path, gone_ok)
    for begin in range(0, len(numbers), _STEPS_AT_ONCE):
        some = numbers[begin:begin + _STEPS_AT_ONCE]
        found = core.find_in_steps(some, path, gone_ok)
        leaves = [seen.add(step, selection) for step, selection in zip(some, found, strict=True)
                  if selection is not None]
        seen.lacking += [step for step, selection in zip(some, found, strict=True)
                         if selection is None]
        if leaves and seen.are_fine:
            yield leaves
    if seen.steps:
        seen.check()
    else:  # only a whole tree can tell what the path names
        yield from _leaves_in_whole_trees(store, numbers, path, gone_ok)


def _leaves_in_whole_trees(store: OpenStore, numbers: Sequence[int], path: PathLike | None,
                           gone_ok: bool) -> Iterator[list[Leaf]]:
    store._source(numbers[-1]).tree.resolve(path)  # or no step has it, most likely
    seen = _Seen(store, path, gone_ok)
    for step in numbers:
        try:
            selection = store._source(step).tree.resolve(path)
        except (PathNotFoundError, StepNotFoundError):
            seen.lacking.append(step)
            continue
        leaf = seen.add(step, selection)
        if seen.are_fine:
            yield [leaf]
    seen.check()


# ---- reading ------------------------------------------------------------------------------------


class Rows:
    """The slice of a leaf, read in several steps. `leaf`: in one of them."""

    def __init__(self, leaf: Leaf, index: tuple[Any, ...]) -> None:
        self._record = leaf.tree.record(leaf.number)
        self._axes, self._local = axes_of(self._record.shape, index)
        self._is_value = self._record.kind == VALUE
        self.dtype = np.dtype(object) if self._is_value else self._record.dtype
        self._shape = tuple([len(axis) for axis in self._axes])

    @property
    def row_bytes(self) -> int:
        return math.prod(self._shape) * self.dtype.itemsize

    def memory(self, count: int) -> np.ndarray[Any, Any]:
        return np.empty((count, *self._shape), self.dtype)

    def read(self, leaves: list[Leaf], out: np.ndarray[Any, Any]) -> LoadStats:
        """Fills `out`, some rows of `memory`."""
        if self._is_value:
            return self._read_values(leaves, out)
        places = [(leaf.tree, leaf.number) for leaf in leaves]
        if all(axis.step == 1 for axis in self._axes):
            whole = [axis.start for axis in self._axes], [axis.stop for axis in self._axes]
            return _stepwell.read_rows(places, [whole], [out])
        total = LoadStats()
        for batch in in_batches(
                boxes_of(self._record, self._axes),
                lambda box: len(leaves) * self.dtype.itemsize * math.prod(box.shape), BATCH_BYTES):
            raws = [np.empty((len(leaves), *box.shape), self.dtype) for box in batch]
            total += _stepwell.read_rows(places, [(box.start, box.stop) for box in batch], raws)
            for box, raw in zip(batch, raws, strict=True):
                out[(EVERY, *box.to)] = raw[(EVERY, *box.taken)]
        return total

    def _read_values(self, leaves: list[Leaf], out: np.ndarray[Any, Any]) -> LoadStats:
        total = LoadStats()
        for row, leaf in enumerate(leaves):
            loaded = leaf.tree.read_boxes([Wanted(leaf.number)])
            out[row] = decode_value(self._record.value_type, loaded.value[0])
            total += loaded.stats
        return total

    def finish(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Rows of `memory`, which were read, as the slice makes them."""
        if self._is_value:
            rows = numbers_of(rows.tolist(), self._record.value_type)
        taken: np.ndarray[Any, Any] = rows[(EVERY, *self._local)]
        return taken


def numbers_of(values: list[Any], value_type: ValueType) -> np.ndarray[Any, Any]:
    """Python numbers of one type as an array."""
    for dtype in (_NUMBERS[value_type], np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            pass
    raise InvalidArgumentError("the integers do not fit 64 bits: load them step by step")


def _read_all(store: OpenStore, numbers: Sequence[int], path: PathLike | None,
              index: tuple[Any, ...], gone_ok: bool) -> History:
    reading: Rows | None = None
    taken: list[int] = []
    total = LoadStats()
    for leaves in leaves_of(store, numbers, path, gone_ok):
        if reading is None:
            reading = Rows(leaves[0], index)
            memory = reading.memory(len(numbers))  # pages count when they are written
        total += reading.read(leaves, memory[len(taken):len(taken) + len(leaves)])
        taken += [leaf.step for leaf in leaves]
    store._account(total)
    assert reading is not None
    return History(tuple(taken), reading.finish(memory[:len(taken)]))


def _read_together(store: OpenStore, numbers: Sequence[int], path: PathLike | None,
                   index: tuple[Any, ...], gone_ok: bool) -> History:
    """The same where all processes read together, step by step."""
    seen = _Seen(store, path, gone_ok)
    rows: list[Any] = []
    taken: list[int] = []
    value_type: ValueType | None = None
    for step in numbers:
        source = store._source(step)
        try:
            leaf = seen.add(step, source.tree.resolve(path))
        except PathNotFoundError:
            seen.lacking.append(step)
            continue
        if not seen.are_fine:
            continue
        record = leaf.tree.record(leaf.number)
        if record.kind == ARRAY:
            read = functools.partial(read_slice, source, leaf.number, index)
        else:
            value_type = record.value_type
            read = functools.partial(source.read, leaf.number)
        rows.append(source.all_or_none(read))
        taken.append(step)
    seen.check()
    if value_type is None:
        return History(tuple(taken), np.stack(rows))
    values = numbers_of([decode_value(value_type, raw) for raw in rows], value_type)
    return History(tuple(taken), values[(EVERY, *axes_of((), index)[1])])


# ---- statistics ---------------------------------------------------------------------------------


_STATISTICS: Final = np.dtype([
    ("min", np.float64), ("max", np.float64), ("sum", np.float64), ("norm", np.float64),
    ("changed", np.float64), ("elements", np.int64), ("nonfinite", np.int64)])


def _statistics(store: OpenStore, numbers: Sequence[int], path: PathLike | None, gone_ok: bool
                ) -> History:
    taken: list[int] = []
    rows: list[tuple[float | int, ...]] = []
    for leaf in _leaves_one_by_one(store, numbers, path, gone_ok):
        found = statistics_of(leaf.tree.record(leaf.number))
        if found is None:
            if gone_ok:
                continue
            raise InvalidArgumentError(f"step {leaf.step} has no statistics of {path!r}: it was "
                                       "saved without open(statistics=True)")
        taken.append(leaf.step)
        rows.append((_or_nan(found.min), _or_nan(found.max), found.sum, found.norm,
                     math.nan if found.changed is None else found.changed / max(found.elements, 1),
                     found.elements, found.nonfinite))
    if not taken:
        raise InvalidArgumentError(f"no step has statistics of {path!r}: they were saved without "
                                   "open(statistics=True)")
    return History(tuple(taken), np.array(rows, _STATISTICS))


def _leaves_one_by_one(store: OpenStore, numbers: Sequence[int], path: PathLike | None,
                       gone_ok: bool) -> Iterator[Leaf]:
    if not store._backend.collective_reads:
        for leaves in leaves_of(store, numbers, path, gone_ok):
            yield from leaves
        return
    for leaves in _leaves_in_whole_trees(store, numbers, path, gone_ok):
        yield from leaves


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


# ---- like ---------------------------------------------------------------------------------------


def _as_like(found: History, like: Any, path: PathLike | None) -> Any:
    values = found.values
    jax = jax_here()
    if jax is not None and isinstance(like, jax.sharding.Sharding):
        dtype = jax.dtypes.canonicalize_dtype(values.dtype)
        return _on_devices(found, dtype, like, path)
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise InvalidArgumentError(f"like must be an array, what describes one, or a sharding, not "
                                   f"{brief(like)}")
    is_numpy = jax is None or isinstance(like, (np.ndarray, np.generic))
    dtype = values.dtype if is_numpy else jax.dtypes.canonicalize_dtype(values.dtype)
    if like.dtype != dtype or tuple(like.shape) != values.shape[1:]:
        is_shape = like.dtype == dtype
        raise MismatchError("the history does not fit `like`:", [Mismatch(
            str(path or ""), f"stored {array_text(values.dtype, values.shape[1:])} in each step, "
            f"wanted {like.dtype}[{', '.join(map(str, like.shape))}]",
            "shape" if is_shape else "dtype")])
    if is_numpy:
        return values
    committed = getattr(like, "committed", True) is not False
    return _on_devices(found, dtype, getattr(like, "sharding", None) if committed else None, path)


@transfers_allowed()
def _on_devices(found: History, dtype: Any, sharding: Any, path: PathLike | None) -> Any:
    """A jax array, with `sharding`, which is that of one step's value; None: where JAX puts it."""
    jax = sys.modules["jax"]
    values = found.values
    if values.dtype != dtype:
        made = values.astype(dtype)
        if values.dtype.kind in "iu" and not np.array_equal(made, values):
            raise MismatchError("the history does not fit `like`:", [Mismatch(
                str(path or ""), f"stored {values.dtype} values do not fit {dtype}, which JAX has "
                "in its place without jax_enable_x64", "dtype")])
        values = made
    if sharding is None:
        return jax.device_put(values)
    types = jax.sharding
    sharding = concrete(sharding)
    if isinstance(sharding, types.NamedSharding):
        sharding = types.NamedSharding(sharding.mesh, types.PartitionSpec(None, *sharding.spec),
                                       memory_kind=sharding.memory_kind)
    elif not isinstance(sharding, types.SingleDeviceSharding):
        raise InvalidArgumentError("the sharding of `like` must be a NamedSharding over a mesh "
                                   "that is here, or of one device")
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
