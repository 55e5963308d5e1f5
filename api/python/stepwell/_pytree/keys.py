# SPDX-License-Identifier: Apache-2.0
"""Dict keys that are neither str nor an int of 64 bits, as text and back.

The text is a Python literal: "True", "1.5", "None", "b'x'", "(1, 'a')"; of an enum's member
"Color.RED". Keys that are equal have one text, and no other key has it.
"""

from __future__ import annotations

import ast
import enum
import math
from typing import Any

import numpy as np

_INT_BITS_MAX = 2000  # from here on Python's own conversions may refuse (4300 digits)


class BadKeyError(Exception):
    """A mapping key that cannot be stored."""


def literal(key: Any) -> str:
    """The text of a key. BadKeyError."""
    text = literal_or_none(key)
    if text is not None:
        return text
    try:
        shown = repr(key)
    except ValueError:
        shown = "an int of too many digits"
    raise BadKeyError(f"has a key of type {type(key).__name__} ({shown}); keys are str, int, bool, "
                      "finite float, bytes, None, members of enums and tuples of these")


def literal_or_none(key: Any) -> str | None:
    """The text of a key; None: it cannot be stored."""
    if isinstance(key, tuple):  # a namedtuple equals the tuple
        parts = [literal_or_none(part) for part in key]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else (
            f"({', '.join(known)}{',' if len(known) == 1 else ''})")
    if key is None or isinstance(key, (bool, np.bool_)):
        return str(key)
    if isinstance(key, (int, np.integer)):
        return repr(int(key)) if int(key).bit_length() <= _INT_BITS_MAX else None
    if isinstance(key, (float, np.floating)):
        return repr(float(key) + 0.0) if math.isfinite(key) else None  # -0.0 equals 0.0
    if isinstance(key, str):
        return repr(str(key))
    if isinstance(key, bytes):
        return repr(bytes(key))
    if isinstance(key, enum.Enum):  # without the module, as str(key) is, which Orbax writes
        return f"{type(key).__name__}.{key.name}" if key.name else None
    return None


def key_of(text: str) -> Any:
    """The key with this text: of an enum's member, whose class is not known here, the text."""
    try:
        key = ast.literal_eval(text)
        return key if literal_or_none(key) == text else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # what a damaged text leads to
        return text
