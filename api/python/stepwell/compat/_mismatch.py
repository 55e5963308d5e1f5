# SPDX-License-Identifier: Apache-2.0
"""Words the errors of a facade's function about a step that does not fit its target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import MismatchError


@contextlib.contextmanager
def mismatches_of(target: str, **hints: str) -> Iterator[None]:
    """Raises a MismatchError of `Store.load` in the words of the function that the user called.

    target: what stands there for `like`, which `Store.load` speaks of.
    hints: what to do about mismatches, by their kinds. Those of `Store.load` name its arguments,
        which the function may not have.
    """
    try:
        yield
    except MismatchError as error:
        def described(text: str) -> str:
            return text.replace("`like`", target)

        kinds = {mismatch.kind for mismatch in error.mismatches}
        raise MismatchError(
            described(str(error).partition("\n")[0]),
            [each._replace(message=described(each.message)) for each in error.mismatches],
            "; ".join([hint for kind, hint in hints.items() if kind in kinds])) from None


def check_names(keys: Iterable[Any]) -> None:
    """ValueError where two keys of a dict are one str."""
    known: dict[str, Any] = {}
    for key in keys:
        if known.setdefault(str(key), key) is not key:
            raise ValueError(f"the keys {known[str(key)]!r} and {key!r} of a dict are one name for "
                             "Flax and Orbax, which know str keys only; stepwell.open loads both")
