# SPDX-License-Identifier: Apache-2.0
"""Restoring leaves: what is wanted of each, and reading it."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import PLACEHOLDER, RestoreArgs
from orbax.checkpoint.metadata import ArrayMetadata, Metadata, ScalarMetadata, StringMetadata

from ..._load.device_placement import Cast, Slot, Target, read_slots, same
from ..._load.specs import concrete, logical_array, why_not_split
from ..._pytree.records import ARRAY
from ..._pytree.tree import path_text
from ..._stepwell import Record, ValueType, decode_value
from .._orbax_stored import PYTHON_TYPES, StoredItem, saved_sharding, scalar_dtype

_EXACT = (str, bytes, complex)  # Python types that no other becomes


@dataclasses.dataclass(frozen=True)
class Want:
    """The type that one leaf is restored as. `as_saved`: as the type that it was saved as.

    sharding, shape: of a jax array; None: as saved. strict: an array of another shape is an error;
    else it is padded with zeros or truncated. python: the type of a Python value.
    """

    kind: Literal["as_saved", "jax", "numpy", "python", "skip"] = "as_saved"
    dtype: Any = None
    sharding: Any = None
    shape: tuple[int, ...] | None = None
    strict: bool = True
    python: Callable[[Any], Any] = str


def _concrete(value: Any) -> Any:
    """A sharding of a target or of restore arguments: one of JAX, a Format around one, or
    metadata of one. ValueError if its mesh has no devices and jax.set_mesh has set none."""
    if value is None:
        return None
    if hasattr(value, "to_jax_sharding"):
        return value.to_jax_sharding()
    inner = getattr(value, "sharding", None)  # a jax.experimental.layout.Format
    found = concrete(value if inner is None else inner)
    if found is None:
        raise ValueError(f"{value} is over a mesh without devices, and jax.set_mesh has set none")
    return found


def is_key(dtype: Any) -> bool:
    return dtype is not None and bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def want_of_args(args: Any, leaf: Any = None) -> Want:
    """Returns what RestoreArgs ask for. `leaf`: the target's, whose shape and dtype hold where
    ArrayRestoreArgs have none."""
    kind, dtype = args.restore_type, args.dtype
    if kind is None:
        return Want(dtype=dtype)
    if kind is type(PLACEHOLDER):
        return Want("skip")
    if isinstance(kind, type) and issubclass(kind, jax.Array):
        sharding = getattr(args, "sharding", None)
        mesh, axes = getattr(args, "mesh", None), getattr(args, "mesh_axes", None)
        if mesh is not None and axes is not None:
            sharding = jax.sharding.NamedSharding(mesh, axes)
        shape, strict = getattr(args, "global_shape", None), getattr(args, "strict", True)
        if strict and hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            shape = leaf.shape if shape is None else shape
            dtype = leaf.dtype if dtype is None else dtype
        return Want("jax", dtype, sharding, None if shape is None else tuple(shape), strict)
    if isinstance(kind, type) and issubclass(kind, np.ndarray):
        return Want("numpy", dtype)
    return Want("python", dtype, python=kind)


def want_of_leaf(leaf: Any, record: Record | None, strict: bool, fallback: Any) -> Want:
    """Returns what a leaf of a target asks for. TypeError if it is of no type that can be a
    target."""
    if leaf is PLACEHOLDER:
        return Want("skip")
    if isinstance(leaf, StringMetadata):
        return Want("python", python=str)
    if isinstance(leaf, ScalarMetadata):
        return Want("python", leaf.dtype, python=type(np.dtype(leaf.dtype).type(0).item()))
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, ArrayMetadata)):
        described = isinstance(leaf, Metadata)
        sharding = leaf.sharding
        is_array = record is not None and record.kind == ARRAY
        if sharding is None and (described or not is_array or not _was_jax(record)):
            return Want("numpy", leaf.dtype, shape=tuple(leaf.shape), strict=strict)
        if hasattr(sharding, "to_jax_sharding"):
            try:
                sharding = sharding.to_jax_sharding()
            except ValueError:
                sharding = fallback
        return Want("jax", leaf.dtype, sharding or fallback_of(record, fallback),
                    tuple(leaf.shape), strict)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return Want("numpy", leaf.dtype, shape=leaf.shape, strict=strict)
    if isinstance(leaf, (numbers.Number, str, bytes)):
        return Want("python", python=type(leaf))
    if isinstance(leaf, RestoreArgs):
        return want_of_args(leaf)
    raise TypeError(f"Unsupported type: {type(leaf)}")


def fallback_of(record: Record | None, fallback: Any) -> Any:
    """The fallback sharding where the one that an array was saved with is not possible here."""
    if fallback is None or record is None or record.kind != ARRAY or not record.sharding:
        return None
    return None if saved_sharding(record.sharding) is not None else fallback


def _was_jax(record: Record | None) -> bool:
    return record is not None and record.value_type in (ValueType.JAX, ValueType.PRNG_KEY)


class _Reading(NamedTuple):
    slot: Slot
    finish: Callable[[Any], Any]


def read_leaves(item: StoredItem, wants: Iterable[tuple[int, Want]]) -> dict[int, Any]:
    """Values by number. ValueError if one is not possible; nothing was read then."""
    reader = _Reader(item)
    readings = {number: reader.reading(number, want) for number, want in wants
                if want.kind != "skip"}
    values = read_slots(item.source, [reading.slot for reading in readings.values()])
    return {number: reading.finish(value)
            for (number, reading), value in zip(readings.items(), values, strict=True)}


class _Reader:
    """Plans the reading of leaves of one item."""

    def __init__(self, item: StoredItem) -> None:
        self.item = item
        self._saved: dict[str, Any] = {}

    def _bad(self, number: int, why: str) -> ValueError:
        path = path_text(self.item.tree.components(number, self.item.number))
        return ValueError(f"step {self.item.source.step}, item {self.item.name!r}, "
                          f"{path or 'the leaf itself'}: {why}")

    def _saved_sharding(self, text: str) -> Any:
        if text not in self._saved:
            self._saved[text] = saved_sharding(text) if text else None
        return self._saved[text]

    def reading(self, number: int, want: Want) -> _Reading:
        record = self.item.record(number)
        kind = want.kind
        if kind == "as_saved":
            kind = "jax" if record.kind == ARRAY and _was_jax(record) else "numpy"
            if record.kind != ARRAY:
                return self._python(number, record, Want("python", want.dtype, python=same))
        if kind == "python":
            return self._python(number, record, want)
        if record.kind != ARRAY and PYTHON_TYPES[record.value_type] in (str, bytes):
            return self._python(number, record, Want("python", python=same))
        return (self._jax if kind == "jax" else self._numpy)(number, record, want)

    def _python(self, number: int, record: Record, want: Want) -> _Reading:
        value_type = record.value_type
        dtype = None if is_key(want.dtype) else want.dtype
        stored = None if record.kind == ARRAY else PYTHON_TYPES[value_type]
        if want.python in _EXACT and want.python is not stored or (
                stored in (str, bytes) and want.python not in (stored, same)):
            raise self._bad(number, f"stored {self.item.tree.describe(number)}, wanted a "
                                    f"{getattr(want.python, '__name__', want.python)}")
        if record.kind != ARRAY:
            def finish(raw: Any) -> Any:
                value = decode_value(value_type, raw)
                if dtype is not None and not isinstance(value, (str, bytes)):
                    value = np.asarray(value).astype(dtype).item()
                return want.python(value)

            return _Reading(Slot(number, same), finish)
        if record.shape:
            raise self._bad(number, f"stored {self.item.tree.describe(number)}, wanted a "
                                    f"{getattr(want.python, '__name__', 'scalar')}: "
                                    "Restored result is not a scalar.")
        return _Reading(Slot(number, same),
                        lambda raw: want.python((raw if dtype is None else raw.astype(dtype))[()]
                                                .item()))

    def _check_shape(self, number: int, record: Record, want: Want, shape: tuple[int, ...]) -> bool:
        """Checks that the stored shape is the wanted one; if not, it is to be padded or
        truncated."""
        if want.shape is None or want.shape == shape or is_key(want.dtype):
            return True
        if want.strict:
            raise self._bad(number, f"Requested shape: {want.shape} is not compatible with the "
                                    f"stored shape: {shape}; strict=False pads and truncates")
        if len(want.shape) != len(shape):
            raise self._bad(number, f"stored with shape {shape}, wanted {want.shape}: padding and "
                                    "truncating keep the number of dimensions")
        return False

    def _numpy(self, number: int, record: Record, want: Want) -> _Reading:
        dtype = None if want.dtype is None or is_key(want.dtype) else np.dtype(want.dtype)
        fits = self._check_shape(number, record, want, tuple(record.shape))

        def finish(value: Any) -> Any:
            return value if fits else _padded(value, want.shape or ())

        return _Reading(Slot(number, _array_of(record, dtype)), finish)

    def _jax(self, number: int, record: Record, want: Want) -> _Reading:
        sharding = _concrete(want.sharding)
        if sharding is None:
            sharding = self._saved_sharding(record.sharding)
        if record.value_type == ValueType.PRNG_KEY:
            shape, key_dtype = logical_array(record)
            if is_key(want.dtype) and want.dtype != key_dtype:
                raise self._bad(number, f"stored {key_dtype}, wanted {want.dtype}")
            if want.dtype is not None and not jnp.issubdtype(want.dtype, jnp.unsignedinteger) and (
                    not is_key(want.dtype)):
                raise TypeError(str(self._bad(number, f"stored {key_dtype}, wanted {want.dtype}")))
            if is_key(want.dtype) and want.shape not in (None, shape):
                raise self._bad(number, f"Requested shape: {want.shape} is not compatible with the "
                                        f"stored shape: {shape}")
            target = Target(shape, key_dtype, _of_rank(sharding, len(shape)), False,
                            record.prng_impl)
            return _Reading(Slot(number, same, target), same)
        shape = tuple(record.shape) if record.kind == ARRAY else ()
        stored = record.dtype if record.kind == ARRAY else scalar_dtype(
            record.value_type)
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(
            stored if want.dtype is None or is_key(want.dtype) else want.dtype))
        convert = _array_of(record, dtype)
        if not self._check_shape(number, record, want, shape):
            return _Reading(Slot(number, convert), lambda value: jax.device_put(
                _padded(value, want.shape or ()), sharding))
        if sharding is not None:
            why = why_not_split(shape, sharding)
            if why:
                raise self._bad(number, why)
        return _Reading(Slot(number, convert, Target(shape, dtype, sharding)), same)


def _of_rank(sharding: Any, rank: int) -> Any:
    """A sharding of key data as one of the keys, which have fewer axes."""
    spec = getattr(sharding, "spec", None)
    if spec is None or len(spec) <= rank:
        return sharding
    return jax.sharding.NamedSharding(sharding.mesh, type(spec)(*spec[:rank]),
                                      memory_kind=sharding.memory_kind)


def _array_of(record: Record, dtype: Any) -> Callable[[Any], Any]:
    """Returns a function that makes a NumPy array of a stored leaf."""
    if record.kind == ARRAY:
        return same if dtype is None or dtype == record.dtype else Cast(dtype)
    value_type = record.value_type
    return lambda raw: np.asarray(decode_value(value_type, raw), dtype=dtype)


def _padded(array: Any, shape: tuple[int, ...]) -> Any:
    """`array` with `shape`: cut off at the end, or with zeros behind it."""
    out = np.zeros(shape, array.dtype)
    box = tuple(slice(0, min(pair)) for pair in zip(shape, array.shape, strict=True))
    out[box] = array[box]
    return out
