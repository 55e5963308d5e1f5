# SPDX-License-Identifier: Apache-2.0
"""Arguments of `Store`'s methods, checked."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, SupportsIndex

from .. import _stepwell
from .._text import brief
from ..errors import InvalidArgumentError, PathNotFoundError

Disks = Literal["shared", "local"]
IfExists = Literal["error", "replace", "skip"]
Progress = Callable[[int, int], object]  # (bytes done, bytes in all)

COUNT_MAX = 2**63 - 1
STEP_MAX = 2**63 - 1
_NEWEST_HINT = "load() loads the newest step, and store.latest is its number"


class NotGiven:
    """The default of an argument that None is not."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


NEWEST: Any = NotGiven("<the newest>")  # a step


def step_or_newest(step: SupportsIndex | None) -> int | None:
    """A step that was given, or None for NEWEST. InvalidArgumentError for None: `best` and `latest`
    give it where there is no step, and the caller did not ask for the newest."""
    if step is NEWEST:
        return None
    if step is None:
        raise InvalidArgumentError("the step is None: leave it out for the newest step (`best` is "
                                   "None where no step has a finite value)")
    return step_number(step)


def problem_path(item: str, path: str) -> str:
    if item in ("", "state"):
        return path
    return f"{item}/{path}" if path else item


def step_numbers(steps: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    if isinstance(steps, SupportsIndex):
        return [step_number(steps)]
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise InvalidArgumentError(_not_a_step(steps))
    return [step_number(step) for step in steps]


def step_index(step: SupportsIndex) -> int:
    if isinstance(step, bool):
        raise InvalidArgumentError(_not_a_step(step))
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidArgumentError(_not_a_step(step)) from None


def step_number(step: SupportsIndex) -> int:
    number = step_index(step)
    if not 0 <= number <= STEP_MAX:
        hint = f"; {_NEWEST_HINT}" if number == -1 else ""
        raise InvalidArgumentError(f"a step must be 0 … 2^63 − 1, not {number}{hint}")
    return number


def count_of(name: str, n: SupportsIndex) -> int:
    """Returns the argument `name` as a count of at least 1."""
    try:
        if isinstance(n, bool):
            raise TypeError
        count = operator.index(n)
    except TypeError:
        raise InvalidArgumentError(f"{name} takes an int, not {n!r}") from None
    if not 1 <= count <= COUNT_MAX:
        raise InvalidArgumentError(f"{name} takes an int, at least 1 and below 2^63, not {n!r}")
    return count


def seconds_of(name: str, duration: float | timedelta) -> float:
    """Returns the argument `name` as a duration in seconds."""
    try:
        seconds = (duration.total_seconds() if isinstance(duration, timedelta)
                   else float(duration))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{name} takes seconds or a timedelta, not {duration!r}") from None
    if not 0 <= seconds < math.inf:
        raise InvalidArgumentError(f"{name}'s duration must be 0 seconds or more, not {duration!r}")
    return seconds


def _not_a_step(step: object) -> str:
    hint = "; the step comes first: save(step, state), load(step, path)"
    if isinstance(step, (str, bytes)):
        hint = f": pass the number given to save; {_NEWEST_HINT}"
    elif isinstance(step, (bool, float)):
        hint = ": pass the number given to save"
    return f"a step must be an int, not {brief(step)}{hint}"


def check_path(path: object) -> Any:
    """`path`, when it can be one: a str, a tuple, or None for none."""
    if path is not None and not isinstance(path, (str, tuple)):
        hint = "; pass a tree to load into as like=" if isinstance(path, Mapping) else ""
        raise InvalidArgumentError(
            f"a path must be a str or a tuple of keys, not {brief(path)}{hint}")
    return path


def check_mapping(value: object, name: str, what: str = "") -> None:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} must be a dict{what and ' '}{what}, not {brief(value)}")


def item_names(items: Iterable[str] | None) -> list[str]:
    if isinstance(items, str):
        raise InvalidArgumentError("items must be a list of names")
    return list(items or ())


def if_exists_of(if_exists: str) -> _stepwell.IfExists:
    if if_exists not in _stepwell.IfExists.__members__:
        raise InvalidArgumentError(
            f"if_exists must be 'error', 'replace' or 'skip', not {if_exists!r}")
    return _stepwell.IfExists[if_exists]


def json_text(value: Mapping[str, Any] | None, name: str) -> str:
    if value is None:
        return ""
    check_mapping(value, name)
    try:
        return json.dumps(value, default=_json_scalar)
    except TypeError as error:
        why = _not_json(value, name) or f"{name}: {error}"
        raise InvalidArgumentError(f"{name} is not JSON: {why}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is not JSON: {error}") from None


def _not_json(value: Any, name: str) -> str | None:
    """The first place in `value`, which `name` names, that JSON cannot have."""
    if isinstance(value, dict):
        for key in value:
            if not (key is None or isinstance(key, (str, int, float))):
                return f"{name} has the key {key!r}; keys must be str"
        below = [(f"{name}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        below = [(f"{name}[{number}]", each) for number, each in enumerate(value)]
    else:
        try:
            json.dumps(value, default=_json_scalar)
        except TypeError:
            hint = "; pass its .tolist()" if hasattr(value, "tolist") else ""
            return f"{name} is {brief(value)}{hint}"
        return None
    return next((why for where, each in below if (why := _not_json(each, where))), None)


def _json_scalar(value: Any) -> Any:
    """0-d arrays and NumPy scalars, as metrics often are."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"object of type {type(value).__name__}")


def check_items(step: int, names: Iterable[str], stored: Iterable[str]) -> None:
    """Checks that these items, all different, can be deleted of a step that has `stored`."""
    there, asked = sorted(stored), list(names)
    texts = ", ".join(map(repr, there))
    for name in asked:
        if name not in there:
            raise PathNotFoundError(f"step {step} has no item {name!r}; it has {texts}")
    if len(asked) == len(there):
        raise InvalidArgumentError(
            f"step {step} has only the items {texts}: delete the whole step")
