# SPDX-License-Identifier: Apache-2.0
"""Loading into the structure of `like`.

First `like` and the stored tree are walked side by side; every mismatch is collected and nothing is
read. Then the leaves are read and placed (device_placement.py), and the containers of `like` are
built around them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._pytree.keys import BadKeyError
from .._pytree.objects import is_stateful
from .._pytree.records import ARRAY, VALUE
from .._pytree.tree import (ATTRIBUTE, DEPTH_MAX, OBJECT, TRANSPARENT, Component, Opened,
                            TooDeepError, is_array_like, is_inside_equinox, is_static, open_node,
                            path_text, type_name)
from .._runtime.arguments import Progress
from .._runtime.gc_pause import paused
from .._stepwell import Matched, Record, StepTree, ValueType, decode_value, match_exactly
from .._text import LISTED_MAX, with_article
from ..errors import (AmbiguousPathError, Mismatch, MismatchError, MismatchKind,
                      UnsupportedLeafError)
from .casts import Casting
from .device_placement import Canonical, Slot, Target, cast_to, read_slots, same
from .plans import AsStored, Container, Keep, build
from .scalars import KINDS, FromValue, ToValue, kind_of
from .source import Source
from .specs import concrete, jax_here, mesh_text, why_not_split
from .stateful import plan_state
from .wanted import VALUE_TYPES, value_type_of, wanted_text

# An attribute of an enum takes a quarter of a microsecond, for each leaf.
_BYTES, _NONE, _PRNG_KEY = ValueType.BYTES, ValueType.NONE, ValueType.PRNG_KEY

Path = tuple[Component, ...]

_PLAIN = (dict, list, tuple)
_LEAF_TYPES = {kind for kind, _ in VALUE_TYPES} | {type(None), np.ndarray}


class Fit(NamedTuple):
    """Allows differences between `like` and the stored tree.

    cast: stored dtypes are converted to those of `like`; "wrap": whatever becomes of values.
    missing: a leaf that is not stored is taken from `like`, where it has a value.
    unexpected: what `like` lacks is left out.
    shardings: of leaves by number, in place of what `like` says.
    """

    cast: Casting = False
    missing: bool = False
    unexpected: bool = False
    shardings: Mapping[int, Any] = {}


class Matcher:
    """Plans one load with `like`."""

    at_once = True  # whether leaves that are just as stored need no look at each

    def __init__(self, tree: StepTree, step: int, fit: Fit) -> None:
        self.tree = tree
        self._origins = tree.origins
        self.step = step
        self.fit = fit
        self.slots: list[Slot] = []
        self.mismatches: list[Mismatch] = []
        self._unsupported: list[tuple[str, str]] = []
        self._castable = False  # whether `cast` would let one of the mismatches through
        self._keys = False  # whether keys met their data among the mismatches
        self._jax: Any = jax_here()
        # The dtype that JAX gives to data of one: 64-bit types become 32-bit without x64.
        self._canonical: Any = self._jax and functools.cache(self._jax.dtypes.canonicalize_dtype)
        self._why_not_split = functools.cache(why_not_split)
        # Those of jax arrays that fitted as they are stored, by what `like` says of them.
        self._targets: dict[Any, Target] = {}
        self._jax_types: set[type] = set()

    def plan(self, like: Any, number: int) -> Any:
        try:
            plan = self._match(like, number, (), False)
        except TooDeepError as error:
            self._unsupported = [(path_text(error.path), str(error))]
        if self._unsupported:
            text = "; ".join([f"{path or 'like itself'}: {why}" for path, why in self._unsupported])
            paths = [path for path, _ in self._unsupported]
            raise UnsupportedLeafError(f"cannot load into {text}", paths)
        if self.mismatches:
            count = len(self.mismatches)
            noun = "leaf does" if count == 1 else "leaves do"
            raise MismatchError(f"step {self.step}: {count} {noun} not fit `like`:",
                                self.mismatches, self._elsewhere(like, number) or self._hint())
        return plan

    def _elsewhere(self, like: Any, number: int) -> str:
        """Says so where a part of `like` fits `number`, or `like` something right below that."""
        part, text = like, "like"
        for _, name in self.tree.components(number, self.tree.top):
            alike = {str(component[1]): (component, child)
                     for component, child in self._children(part)}
            (kind, name), part = alike.get(str(name), ((ATTRIBUTE, name), ...))
            text += f".{name}" if kind == ATTRIBUTE else f"[{json.dumps(name)}]"
        if part is not like and part is not ... and self._fits(part, number):
            return f"`like` has more than this path loads: give {text}"
        names = {str(component[1]) for component, _ in self._children(like)}
        for component, below in self.tree.children(number).items():
            if names and names == {str(name) for _, name in self.tree.children(below)} and (
                    self._fits(like, below)):
                path = path_text([*self.tree.components(number, self.tree.top), component])
                return f"`like` is what the path {path!r} loads: give that path, too"
        return ""

    def _fits(self, like: Any, number: int) -> bool:
        trial = Matcher(self.tree, self.step, self.fit)
        try:
            trial._match(like, number, (), False)
        except (AmbiguousPathError, TooDeepError):
            return False
        return not (trial.mismatches or trial._unsupported)

    def _children(self, like: Any) -> list[tuple[Component, Any]]:
        opened = None if like is ... or self._is_leaf(like) else open_node(like)
        return [] if opened is None else opened.children

    def _hint(self) -> str:
        kinds = {mismatch.kind for mismatch in self.mismatches}
        hints = ["cast=True converts dtypes"] if self._castable else []
        if self._keys:
            hints.append("jax.random.wrap_key_data and key_data turn data into keys and back")
        if "missing" in kinds and not self.fit.missing:
            hints.append('missing="target" takes what is not stored from `like`')
        if "unexpected" in kinds:
            hints.append('unexpected="ignore" leaves out what `like` lacks')
        if kinds >= {"missing", "unexpected"}:
            hints.append("rename={stored path: path in `like`} moves leaves")
        return "; ".join(hints)

    def _bad(self, path: Path, message: str, kind: MismatchKind = "structure",
             nearest: str | None = None) -> Keep:
        self.mismatches.append(Mismatch(path_text(path), message, kind, nearest))
        return Keep(None)

    # ---- structure ----

    def _match(self, like: Any, number: int, path: Path, in_equinox: bool) -> Any:
        if like is ...:
            return Keep(like)
        if self.at_once and type(like) in _PLAIN and (
                matched := match_exactly(self.tree, like, number)):
            return self._match_others(matched, number, path, in_equinox)
        opened = self._open(like, path)
        if opened is None:
            return self._match_leaf(like, number, path, in_equinox)
        if opened.kind == TRANSPARENT:
            ((_, value),) = opened.children
            inside = self.tree.value_of(number, has_value=_has_value(value))
            return Container(like, opened, [self._match(value, inside, path, in_equinox)])
        if not self.tree.is_node(number):
            return self._match_leafless(like, number, path, in_equinox) or self._bad(
                path, f"stored {self.tree.describe(number)}, "
                      f"wanted {with_article(type(like).__name__)}",
                "missing" if self._is_none(number) else "structure")
        in_equinox = in_equinox or is_inside_equinox(like)
        plans: list[Any] = []
        used: set[int] = set()
        stored = self.tree.children(number)
        for component, child in opened.children:
            below = (*path, component)
            found = stored.get(component)
            if found is None:
                alike = self.tree.find(number, component)
                if len(alike) > 1:
                    raise AmbiguousPathError(
                        f"step {self.step}: {path_text(below)!r} of `like` is ambiguous: several "
                        "stored leaves are spelled so")
                found = alike[0] if alike else None
            if found is None:
                near = functools.partial(self._nearest, number, opened, below)
                plans.append(self._match_missing(child, below, in_equinox, near))
            else:
                used.add(found)
                plans.append(self._match(child, found, below, in_equinox))
        if len(used) < len(stored):
            leafless = self._match_leafless(like, number, path, in_equinox)
            if leafless is not None:
                return leafless
            for component, extra in stored.items():
                if extra not in used and not self.fit.unexpected:
                    for leaf in self.tree.leaves(extra):
                        below_leaf = tuple(self.tree.components(leaf, number))
                        self._bad((*path, *below_leaf),
                                  f"stored {self.tree.describe(leaf)}, not in `like`",
                                  "unexpected")
        return Container(like, opened, plans)

    def _match_others(self, matched: Matched, number: int, path: Path, in_equinox: bool) -> Any:
        first, leaves = len(self.slots), matched.leaves
        self.slots += [Slot(self._origin(leaf), same) for leaf in leaves]
        plans: list[Any] = []
        for like, at in matched.others:
            slot = self._slot_alike(like, at)
            plans.append(slot if slot is not None else self._match(
                like, at, (*path, *self.tree.components(at, number)), in_equinox))
        return AsStored(matched, first, first + len(leaves), plans)

    def _open(self, like: Any, path: Path) -> Opened | None:
        """Opens a node as open_node does. Notes a key that cannot be stored: such a node has no
        children."""
        if self._is_leaf(like):
            return None
        try:
            return open_node(like, to_rebuild=True)
        except BadKeyError as error:
            self._unsupported.append((path_text(path), str(error)))
            return Opened(OBJECT, "", [])

    def _is_leaf(self, like: Any) -> bool:
        """Leaves that are known without asking JAX's registry."""
        return (type(like) in _LEAF_TYPES or isinstance(like, np.generic)
                or (self._jax is not None and isinstance(like, (self._jax.Array,
                                                                self._jax.ShapeDtypeStruct))))

    def _match_missing(self, like: Any, path: Path, in_equinox: bool,
                       near: Callable[[], str | None] | None = None) -> Any:
        """Something of `like` that is not stored: fine for what `save` leaves out, too. `near`
        tells what may be meant."""
        if like is ...:
            return Keep(like)
        if len(path) >= DEPTH_MAX:
            raise TooDeepError(path)
        opened = self._open(like, path)
        if opened is not None:
            if opened.kind == TRANSPARENT:
                return Container(like, opened, [self._match_missing(child, path, in_equinox, near)
                                            for _, child in opened.children])
            in_equinox = in_equinox or is_inside_equinox(like)
            return Container(like, opened, [
                self._match_missing(child, (*path, component), in_equinox, near)
                for component, child in opened.children])
        if like is None:
            return Keep(None)
        if not self._is_leaf(like) and not is_array_like(like) and is_static(like, in_equinox):
            return Keep(like)
        if self.fit.missing:
            if not is_abstract(like):
                return Keep(like)
            return self._bad(path, f"missing in the store, and `like` has no value for "
                                   f"{wanted_text(like)}; give it an array to take", "missing")
        listed = len(self.mismatches) < LISTED_MAX  # or it takes n² time
        nearest = near() if near is not None and listed else None
        return self._bad(path, f"missing in the store, wanted {wanted_text(like)}"
                               + (f" (nearest: {nearest!r})" if nearest else ""),
                         "missing", nearest)

    def _match_leafless(self, like: Any, number: int, path: Path, in_equinox: bool) -> Any:
        """A plan where neither `like` nor what is stored there has a leaf: then their containers
        may differ (Orbax has but None for an optax.EmptyState). None: one of them has a leaf."""
        if not all(self._is_none(leaf) for leaf in self.tree.leaves(number)):
            return None
        known = len(self.mismatches)
        plan = self._match_missing(like, path, in_equinox)
        if len(self.mismatches) == known:
            return plan
        del self.mismatches[known:]
        return None

    def _is_none(self, number: int) -> bool:
        if self.tree.is_node(number):
            return False
        record = self.tree.record(number)
        return record.kind == VALUE and record.value_type == _NONE

    def _nearest(self, number: int, opened: Opened, path: Path) -> str | None:
        """Returns the stored paths nearest to `path`, which is missing, that `like` lacks."""
        taken = [str(component[1]) for component, _ in opened.children]
        near = self.tree.nearest(number, str(path[-1][1]), taken)
        return None if near is None else path_text((*path[:-1], near))

    # ---- leaves ----

    def _match_leaf(self, like: Any, number: int, path: Path, in_equinox: bool) -> Any:
        if not self._is_leaf(like) and not is_array_like(like):
            if is_stateful(like):
                return plan_state(like, path_text(path), self.tree, number, self._slot)
            if isinstance(like, tuple(_LEAF_TYPES)):
                pass  # a subclass, e.g. an IntEnum: loads as the plain value
            elif is_static(like, in_equinox):
                return self._match_leafless(like, number, path, in_equinox) or self._bad(
                    path, f"stored {self.tree.describe(number)}, `like` has "
                          f"{with_article(type(like).__name__)}"
                          + (": call it?" if callable(like) else ""))
            else:
                self._unsupported.append((path_text(path), f"a leaf of type {type_name(like)}"))
                return Keep(None)
        if like is None:
            leafless = self._match_leafless(like, number, path, in_equinox)
            if leafless is not None:
                return leafless
            if self.fit.unexpected:
                return Keep(None)
        elif self.fit.missing and self._is_none(number):
            return self._match_missing(like, path, in_equinox)
        if self.tree.is_node(number) or like is None:
            stored = self.tree.describe(number)
            stored = with_article(stored) if self.tree.is_node(number) else stored
            return self._bad(path, f"stored {stored}, wanted {wanted_text(like)}",
                             "unexpected" if like is None else "structure")
        record = self.tree.record(number)
        if is_array_like(like):
            if isinstance(like, (np.ndarray, np.generic)) or not self._is_jax_target(like):
                return self._to_numpy(like, number, record, path)
            return self._to_jax(like, number, record, path)
        return self._to_python(like, number, record, path)

    def _origin(self, number: int) -> int:
        """The number of a record in the step's own tree."""
        return number if self._origins is None else self._origins[number]

    def _slot(self, number: int, convert: Callable[[Any], Any],
              target: Target | None = None) -> int:
        self.slots.append(Slot(self._origin(number), convert, target))
        return len(self.slots) - 1

    def _wrong(self, like: Any, number: int, path: Path) -> Keep:
        if not (self.fit.cast or self._castable):
            trial = Matcher(self.tree, self.step, self.fit._replace(cast=True))
            trial._match_leaf(like, number, path, False)
            self._castable = not trial.mismatches
        record = self.tree.record(number)
        if record.kind == ARRAY and is_array_like(like):
            wanted = self._jax and self._jax.dtypes.issubdtype(like.dtype,
                                                               self._jax.dtypes.prng_key)
            self._keys |= bool(wanted) != (record.value_type == _PRNG_KEY)
        return self._bad(path, f"stored {self.tree.describe(number)}, wanted {wanted_text(like)}",
                         self._kind_of(like, number))

    def _kind_of(self, like: Any, number: int) -> MismatchKind:
        if self._is_none(number):
            return "missing"
        record = self.tree.record(number)
        if record.kind != ARRAY or not is_array_like(like):
            return "dtype" if record.kind == VALUE and like is not None else "structure"
        is_key = record.value_type == _PRNG_KEY
        return "shape" if record.shape != tuple(like.shape) and not is_key else "dtype"

    def _to_python(self, like: Any, number: int, record: Record, path: Path) -> Any:
        if record.kind == VALUE:
            value_type = record.value_type
            wanted = value_type_of(like)
            if value_type != wanted:
                return self._wrong(like, number, path)
            return self._slot(number, lambda raw: decode_value(value_type, raw))
        kinds = KINDS.get(value_type_of(like), "")
        is_key = record.value_type == _PRNG_KEY
        if record.shape != () or is_key or not kinds or not self._dtype_fits(record.dtype, kinds):
            return self._wrong(like, number, path)
        return self._slot(number, ToValue(kinds[0], self.step, self.tree.text(number)))

    def _dtype_fits(self, dtype: Any, kinds: str) -> bool:
        """Returns true if data of `dtype` may become one of `kinds`. Complex data never becomes
        real."""
        kind = kind_of(dtype)
        return kind in kinds or (self.fit.cast and (kind != "c" or "c" in kinds))

    def _to_numpy(self, like: Any, number: int, record: Record, path: Path) -> Any:
        dtype = np.dtype(like.dtype)
        native = dtype if dtype.isnative else dtype.newbyteorder("=")
        convert = self._array_converter(native, tuple(like.shape), record.dtype, number, record)
        if convert is None:
            return self._wrong(like, number, path)
        if isinstance(like, np.generic):
            return self._slot(number, lambda raw: convert(raw)[()])
        return self._slot(number, convert)

    def _array_converter(self, wanted: Any, shape: tuple[int, ...], compared: Any, number: int,
                         record: Record) -> Callable[[Any], Any] | None:
        """Returns a function that makes an array of `wanted` and `shape` from the raw result; None
        when it does not fit. `compared` is the stored dtype as it counts for the comparison."""
        if record.kind == VALUE:
            kinds = KINDS.get(record.value_type)
            castable = (self.fit.cast and kinds is not None
                        and (kinds != "c" or kind_of(wanted) == "c"))
            if shape != () or kinds is None or not (castable or kind_of(wanted) in kinds):
                return None
            return FromValue(record.value_type, wanted, self.fit.cast == "wrap", self.step,
                             self.tree.text(number))
        if record.kind != ARRAY or record.value_type == _PRNG_KEY or record.shape != shape:
            return None
        if record.dtype == wanted:
            return same
        if self.fit.cast and self._dtype_fits(record.dtype, kind_of(wanted)):
            return cast_to(wanted, self.fit.cast, self.step, self.tree.text(number))
        if compared == wanted:
            return Canonical(wanted, self.step, self.tree.text(number))
        return None

    # ---- JAX ----

    def _is_jax_target(self, like: Any) -> bool:
        if self._jax is None or hasattr(like, "shard_shape"):  # an ArrayView: its sharding is text
            return False
        return (isinstance(like, (self._jax.Array, self._jax.ShapeDtypeStruct))
                or hasattr(like, "sharding") or hasattr(like, "weak_type"))

    def _to_jax(self, like: Any, number: int, record: Record, path: Path) -> Any:
        jax = self._jax
        if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
            return self._to_key(like, number, record, path)
        wanted = np.dtype(like.dtype)
        compared = self._canonical(record.dtype) if record.kind == ARRAY else wanted
        convert = self._array_converter(wanted, tuple(like.shape), compared, number, record)
        if convert is None:
            return self._wrong(like, number, path)
        weak = bool(getattr(like, "weak_type", False))
        return self._place(like, number, path, wanted, convert, weak, "")

    def _place(self, like: Any, number: int, path: Path, dtype: Any, convert: Callable[[Any], Any],
               weak: bool, prng_impl: str) -> Any:
        sharding = self.fit.shardings.get(self._origin(number), self._sharding_of(like))
        shape = tuple(like.shape)
        if sharding is not None:
            abstract, sharding = sharding, concrete(sharding)
            if sharding is None:
                axes = mesh_text(abstract.mesh.shape)
                return self._bad(path, f"the sharding of `like` is over {axes} "
                                       "without devices, and jax.set_mesh has set no such mesh",
                                 "sharding")
            why = self._why_not_split(shape, sharding)
            if why:
                return self._bad(path, f"stored {self.tree.describe(number)}: {why}", "sharding")
        target = Target(shape, dtype, sharding, weak, prng_impl)
        if convert is same and not prng_impl and not self.fit.shardings and isinstance(
                like, (self._jax.Array, self._jax.ShapeDtypeStruct)):
            self._jax_types.add(type(like))
            self._targets[shape, dtype, weak, self._sharding_of(like)] = target
        return self._slot(number, convert, target)

    def _slot_alike(self, like: Any, number: int) -> int | None:
        """The slot of a jax array that is as stored, and like one before it; else None."""
        if type(like) not in self._jax_types:
            return None
        target = self._targets.get((like.shape, like.dtype, like.weak_type,
                                    self._sharding_of(like)))
        record = self.tree.record(number)
        if target is None or record.shape != target.shape or record.kind != ARRAY or (
                record.dtype != target.dtype or record.value_type == _PRNG_KEY):
            return None
        return self._slot(number, same, target)

    @staticmethod
    def _sharding_of(like: Any) -> Any:
        committed = getattr(like, "committed", True) is not False
        return getattr(like, "sharding", None) if committed else None

    def _to_key(self, like: Any, number: int, record: Record, path: Path) -> Any:
        jax = self._jax
        if record.value_type != _PRNG_KEY or record.kind != ARRAY:
            return self._wrong(like, number, path)
        impl = record.prng_impl
        stored = jax.eval_shape(lambda data: jax.random.wrap_key_data(data, impl=impl),
                                jax.ShapeDtypeStruct(record.shape, record.dtype))
        if stored.dtype != like.dtype or stored.shape != tuple(like.shape):
            return self._wrong(like, number, path)
        return self._place(like, number, path, like.dtype, same, False, impl)


def load_like(source: Source, wanted: Iterable[tuple[Any, int]], fit: Fit,
              tree: StepTree | None = None, progress: Progress | None = None) -> list[Any]:
    """For each of `wanted`, a `like` and the number of a record, what is stored as that asks.
    `tree`: that of the source, rearranged."""
    with paused():
        matcher = Matcher(tree or source.tree, source.step, fit)
        plans = [matcher.plan(like, number) for like, number in wanted]
    values = read_slots(source, matcher.slots, progress)
    states: list[Callable[[], Callable[[], object]]] = []
    with paused():
        loaded = [build(plan, values, states) for plan in plans]
    source.afterwards += states
    return loaded


def is_abstract(like: Any) -> bool:
    """Returns true if a leaf of `like` describes an array and has no value."""
    return is_array_like(like) and not isinstance(like, (np.ndarray, np.generic)) and not (
        hasattr(like, "__array__") or hasattr(like, "addressable_shards"))


def _has_value(node: Any) -> bool:
    return isinstance(node, Mapping) and list(node) == ["value"]
