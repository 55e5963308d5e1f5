# SPDX-License-Identifier: Apache-2.0
"""Stored Python numbers as arrays without axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._stepwell import ValueType, decode_value
from ..errors import Mismatch, MismatchError

# The kinds of dtype that a Python number's are.
KINDS: dict[int, str] = {
    ValueType.BOOL: "b", ValueType.INT: "iu", ValueType.FLOAT: "f", ValueType.COMPLEX: "c"}
PLAIN: dict[str, Callable[[Any], Any]] = {"b": bool, "i": int, "u": int, "f": float, "c": complex}


def kind_of(dtype: Any) -> str:
    """NumPy's kind letter, with ml_dtypes' types sorted in."""
    dtype = np.dtype(dtype)
    if dtype.kind != "V":
        return str(dtype.kind)
    name = dtype.name
    if name.startswith("uint"):
        return "u"
    return "i" if name.startswith("int") else "f"


class FromValue:
    """A `convert` of a stored number. MismatchError for one that the dtype does not hold, also for
    a float that would become inf or NaN; with `wraps` what astype makes of it."""

    def __init__(self, value_type: ValueType, dtype: Any, wraps: bool, step: int, path: str
                 ) -> None:
        self._value_type = value_type
        self._kinds = KINDS[value_type]
        self._dtype = dtype
        self._wraps = wraps
        self._step = step
        self._path = path

    def __call__(self, raw: Any) -> Any:
        value = decode_value(self._value_type, raw)
        try:
            if self._wraps:
                with np.errstate(all="ignore"):
                    return np.array(value).astype(self._dtype)
            if kind_of(self._dtype) not in self._kinds:
                value = PLAIN[kind_of(self._dtype)](value)
            with np.errstate(over="ignore"):
                made = np.array(value, self._dtype)
            fits = self._kinds not in "fc" or bool(
                np.isfinite(made) or not np.isfinite(value))
        except (OverflowError, ValueError):  # of NaN as an integer, too
            fits = False
        if fits:
            return made
        why = f"the stored {type(value).__name__} {value} does not fit {self._dtype}"
        hint = "" if self._kinds == "iu" else 'cast="wrap" converts it as NumPy\'s astype does'
        raise MismatchError(f"step {self._step}: 1 leaf does not fit `like`:",
                            [Mismatch(self._path, why, "dtype")], hint)


class ToValue:
    """A `convert` of an array without axes to a Python number, of NumPy's kind letter `kind`.
    MismatchError for NaN or inf as an int."""

    def __init__(self, kind: str, step: int, path: str) -> None:
        self._plain = PLAIN[kind]
        self._step = step
        self._path = path

    def __call__(self, raw: Any) -> Any:
        try:
            return self._plain(raw[()])
        except (OverflowError, ValueError):
            why = f"the stored {raw.dtype} {raw[()]} does not fit an int"
            raise MismatchError(f"step {self._step}: 1 leaf does not fit `like`:",
                                [Mismatch(self._path, why, "dtype")]) from None
