# SPDX-License-Identifier: Apache-2.0
"""Shows values and lists in messages: never a whole array, never thousands of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LISTED_MAX = 20  # lines of a message; attributes of the exception have all
_REPR_MAX = 60  # characters


def brief(value: Any) -> str:
    """A value that should not be there: itself where it is short, else what it is."""
    if value is None or isinstance(value, (str, bytes, int, float, complex)):
        text = repr(value)
        return text if len(text) <= _REPR_MAX else text[:_REPR_MAX] + " …"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {value.dtype}{list(value.shape)}"
    return with_article(type(value).__name__)


def printable(text: str) -> str:
    """On one line, with escapes for what a terminal or a page might obey."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
                    for c in text])


def with_article(noun: str) -> str:
    """ "a dict", "an object"."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"  # a uint8, a UserDict


def counted(count: int, noun: str) -> str:
    """ "1 step", "2,000 steps"; of "leaf" and "axis", too."""
    plural = {"leaf": "leaves", "axis": "axes"}.get(noun, f"{noun}s")
    return f"{count:,} {noun if count == 1 else plural}"


def listed(lines: Sequence[str], attribute: str) -> str:
    """The lines, indented, below the head of a message. `attribute`: of the exception, which has
    those that are left out."""
    text = "".join([f"\n  {line}" for line in lines[:LISTED_MAX]])
    more = len(lines) - LISTED_MAX
    return text + (f"\n  … and {more:,} more, in the exception's `{attribute}`" if more > 0 else "")
