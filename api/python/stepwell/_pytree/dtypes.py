# SPDX-License-Identifier: Apache-2.0
"""Element types: NumPy's and ml_dtypes' dtypes by the format's numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .. import _stepwell

# Native-endian dtype -> number in the format.
NUMBERS: dict[np.dtype[Any], int] = {}


def _fill() -> None:
    known: dict[int, object] = {}
    for number, name in _stepwell.dtype_names().items():
        extension = getattr(ml_dtypes, name, None)
        if extension is None and not hasattr(np, name):
            continue  # an ml_dtypes too old for it: such arrays cannot be met here
        dtype = np.dtype(extension if extension is not None else name)
        NUMBERS[dtype] = number
        known[number] = dtype
    _stepwell.set_dtypes(known)


_fill()


def number_of(dtype: np.dtype[Any]) -> int | None:
    """The format's number of `dtype` in any byte order; None when it cannot be stored."""
    number = NUMBERS.get(dtype)
    if number is None and dtype.kind in "biufc":
        number = NUMBERS.get(np.dtype(dtype.newbyteorder("=").str))
    return number
