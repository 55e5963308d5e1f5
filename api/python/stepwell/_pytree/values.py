# SPDX-License-Identifier: Apache-2.0
"""Python values as bytes: None, bool, int, float, complex, str, bytes. `_stepwell.decode_value` is
the way back."""

from __future__ import annotations

import struct
from typing import Any

from .._stepwell import ValueType

# An attribute of an enum takes a quarter of a microsecond, for each leaf.
_BOOL, _BYTES, _COMPLEX = ValueType.BOOL, ValueType.BYTES, ValueType.COMPLEX
_FLOAT, _INT, _NONE = ValueType.FLOAT, ValueType.INT, ValueType.NONE
_STR = ValueType.STR

_INT_TEXT_BITS_MAX = 2000  # from here on Python's own conversions may refuse (4300 digits)


def encode_value(value: Any) -> tuple[ValueType, bytes] | None:
    """(value type, bytes) of a Python scalar, str, bytes or None; None for anything else."""
    if value is None:
        return _NONE, b""
    if isinstance(value, bool):
        return _BOOL, b"\x01" if value else b"\x00"
    if isinstance(value, int):
        if value.bit_length() <= _INT_TEXT_BITS_MAX:
            return _INT, int.__repr__(value).encode()
        import decimal

        return _INT, format(decimal.Decimal(int(value)), "f").encode()
    if isinstance(value, float):
        return _FLOAT, struct.pack("<d", value)
    if isinstance(value, complex):
        return _COMPLEX, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        return _STR, value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return _BYTES, bytes(value)
    return None
