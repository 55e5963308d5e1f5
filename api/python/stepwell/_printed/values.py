# SPDX-License-Identifier: Apache-2.0
"""Stored arrays and values as the program prints them: as text, and for JSON."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from .._text import printable

_SHOWN_MAX = 60  # characters of a value beside its type
_INT_MAX = 1 << 63


def value_text(value: Any) -> str:
    """A Python value that is not an array: itself for a str, else as Python writes it."""
    return value if isinstance(value, str) else repr(value)


def value_json(value: Any) -> Any:
    """Integers beyond 64 bits are text; NaN and infinities "NaN", "Infinity", "-Infinity"; bytes
    {"base64": …}; complex numbers [real, imaginary]."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return [value_json(value.real), value_json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not -_INT_MAX <= value < _INT_MAX:
        return str(int(value))
    return value


def described(name: str, value: Any) -> str:
    """A value after the name of its type: "int 3"."""
    text = printable(value_text(value))
    if text == name:
        return name
    return f"{name} {text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + '...'}"


def array_json(array: np.ndarray[Any, Any]) -> Any:
    """Nested lists of numbers. A float32 is the shortest number that reads back as it."""
    if array.dtype.kind in "biu":
        return array.tolist()
    if array.dtype.kind == "c":
        return array_json(np.stack([array.real, array.imag], -1))
    if array.dtype.name.startswith(("int", "uint")):  # of ml_dtypes: NumPy has no kind for them
        return array.astype(np.int64).tolist()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = (array.astype(str) if array.dtype == np.float32 else array).astype(np.float64)
    return wide.tolist() if np.isfinite(wide).all() else _finite(wide.tolist())


def _finite(numbers: Any) -> Any:
    return [*map(_finite, numbers)] if isinstance(numbers, list) else value_json(numbers)


def wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In a type that holds each number, and the sums of their squares."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128 if array.itemsize <= 8 else np.clongdouble)
    return array.astype(np.float64 if array.itemsize <= 4 else np.longdouble)
