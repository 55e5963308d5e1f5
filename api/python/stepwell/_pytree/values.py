# SPDX-License-Identifier: Apache-2.0
"""Python values as bytes, and back: None, bool, int, float, complex, str, bytes."""

from __future__ import annotations

import struct
from typing import Any

from .._stepwell import ValueType

_INT_TEXT_BITS_MAX = 2000  # from here on Python's own conversions may refuse (4300 digits)


def encode_value(value: Any) -> tuple[ValueType, bytes] | None:
    """(value type, bytes) of a Python scalar, str, bytes or None; None for anything else."""
    if value is None:
        return ValueType.NONE, b""
    if isinstance(value, bool):
        return ValueType.BOOL, b"\x01" if value else b"\x00"
    if isinstance(value, int):
        if value.bit_length() <= _INT_TEXT_BITS_MAX:
            return ValueType.INT, int.__repr__(value).encode()
        import decimal

        return ValueType.INT, format(decimal.Decimal(int(value)), "f").encode()
    if isinstance(value, float):
        return ValueType.FLOAT, struct.pack("<d", value)
    if isinstance(value, complex):
        return ValueType.COMPLEX, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        return ValueType.STR, value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return ValueType.BYTES, bytes(value)
    return None


def decode_value(value_type: int, data: bytes) -> Any:
    if value_type == ValueType.NONE:
        return None
    if value_type == ValueType.BOOL:
        return data != b"\x00"
    if value_type == ValueType.INT:
        if len(data) < _INT_TEXT_BITS_MAX // 4:
            return int(data)
        import decimal

        return int(decimal.Decimal(data.decode()))
    if value_type == ValueType.FLOAT:
        return struct.unpack("<d", data)[0]
    if value_type == ValueType.COMPLEX:
        return complex(*struct.unpack("<dd", data))
    if value_type == ValueType.STR:
        return data.decode("utf-8", "surrogatepass")
    return data
