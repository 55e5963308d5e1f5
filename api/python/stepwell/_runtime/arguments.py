# SPDX-License-Identifier: Apache-2.0
"""Arguments of `Store`'s methods, checked."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, SupportsIndex

from ..errors import InvalidArgumentError, PathNotFoundError

IfExists = Literal["error", "replace", "skip"]
Progress = Callable[[int, int], object]  # (bytes done, bytes in all)

_STEP_MAX = 2**63 - 1
_IF_EXISTS = {"error": 0, "replace": 1, "skip": 2}  # db::IfExists


def problem_path(item: str, path: str) -> str:
    if item in ("", "state"):
        return path
    return f"{item}/{path}" if path else item


def step_numbers(steps: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    if isinstance(steps, SupportsIndex):
        return [step_number(steps)]
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise InvalidArgumentError(f"a step is an int, not {steps!r}")
    return [step_number(step) for step in steps]


def step_number(step: SupportsIndex) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        raise InvalidArgumentError(f"a step is an int, not {step!r}") from None
    if not 0 <= number <= _STEP_MAX:
        raise InvalidArgumentError(f"a step is 0 … 2^63 − 1, not {number}")
    return number


def if_exists_number(if_exists: str) -> int:
    if if_exists not in _IF_EXISTS:
        raise InvalidArgumentError(f"if_exists is 'error', 'replace' or 'skip', not {if_exists!r}")
    return _IF_EXISTS[if_exists]


def json_text(value: Mapping[str, Any] | None, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} is a dict, not a {type(value).__name__}")
    try:
        return json.dumps(value, default=_json_scalar)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} is not JSON: {error}") from None


def _json_scalar(value: Any) -> Any:
    """0-d arrays and NumPy scalars, as metrics often are."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"object of type {type(value).__name__}")


def check_items(step: int, names: Iterable[str], stored: Iterable[str]) -> None:
    """Whether these items, all different, can be deleted of a step that has `stored`."""
    there, asked = sorted(stored), list(names)
    texts = ", ".join(map(repr, there))
    for name in asked:
        if name not in there:
            raise PathNotFoundError(f"step {step} has no item {name!r}; it has {texts}")
    if len(asked) == len(there):
        raise InvalidArgumentError(
            f"step {step} has no other items than {texts}: delete the step itself")
