# SPDX-License-Identifier: Apache-2.0
"""Which values another dtype does not hold."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np

from ..errors import Mismatch, MismatchError
from .scalars import kind_of

Casting = bool | Literal["wrap"]  # what `load(cast=)` takes

WRAPS = 'cast="wrap" converts as NumPy\'s astype does: integers wrap, floats become inf or NaN'
_PIECE = 1 << 20  # elements that are looked at together: the check takes memory of its own


def first_lost(raw: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> int | None:
    """The place in C order of the first value of `raw` that the dtype of `made` does not hold; None
    if it holds all. Rounding loses no value, and neither does cutting off a fraction."""
    if kind_of(made.dtype) == "b" or np.can_cast(raw.dtype, made.dtype):
        return None
    olds, news = raw.reshape(-1), made.reshape(-1)
    for begin in range(0, olds.size, _PIECE):
        old, new = olds[begin:begin + _PIECE], news[begin:begin + _PIECE]
        lost = np.flatnonzero(_beyond(old, made.dtype) if kind_of(made.dtype) in "iu"
                              else _wide(old, np.isfinite) & ~_wide(new, np.isfinite))
        if lost.size:
            return begin + int(lost[0])
    return None


def _wide(values: np.ndarray[Any, Any], ask: Any) -> Any:
    """`ask` of values in a type of NumPy's own."""
    if values.dtype.kind == "V" or values.dtype.name not in np.sctypeDict:
        values = values.astype(np.float32)
    return ask(values)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns the limits of an integer type, also of one that NumPy does not have."""
    found: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(found.min), int(found.max)


def _beyond(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
    """Which values an integer type does not hold."""
    low, high = _limits(dtype)
    if kind_of(values.dtype) in "iu":
        lowest, highest = _limits(values.dtype)
        beyond = np.zeros(values.shape, np.bool_)
        wide = values if values.dtype.kind in "iu" else values.astype(np.int64)
        if lowest < low:
            beyond |= wide < wide.dtype.type(low)
        if highest > high:
            beyond |= wide > wide.dtype.type(high)
        return beyond
    wide = values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
    # high + 1 is a power of two, which every float has; low - 1 may round to low.
    real = wide.dtype.type
    return ~(((wide >= real(low)) | (wide > real(low - 1))) & (wide < real(high + 1)))


def does_not_fit(step: int, path: str, raw: np.ndarray[Any, Any], place: int,
                 origin: tuple[int, ...], dtype: Any) -> MismatchError:
    """`place`: of the value in `raw`, which begins at `origin` of the whole array."""
    index = np.unravel_index(place, raw.shape)
    where = [int(at) + begin for at, begin in
             zip(index, origin or (0,) * len(index), strict=True)]
    value = raw[index]
    why = f"the stored {raw.dtype} {value} at {where} does not fit {dtype}"
    return MismatchError(f"step {step}: 1 leaf cannot be cast:", [Mismatch(path, why, "dtype")],
                         WRAPS)
