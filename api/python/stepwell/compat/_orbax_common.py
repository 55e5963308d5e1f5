# SPDX-License-Identifier: Apache-2.0
"""Helpers of both facades of Orbax: its errors, coroutines of its handlers, a root's metadata."""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from .. import errors
from .._runtime import durable
from .._runtime.files import read_json_object
from ._work import Work

_FOLDER, _FILE, _LEGACY_FILE = "metadata", "_ROOT_METADATA", "metadata"

T = TypeVar("T")


class UnsupportedLeafError(errors.UnsupportedLeafError, ValueError):
    """Leaves that cannot be saved. A ValueError as in Orbax, and a TypeError."""


@contextlib.contextmanager
def orbax_errors() -> Iterator[None]:
    """Raises the errors of a save as the classes that Orbax raises."""
    try:
        yield
    except errors.UnsupportedLeafError as error:
        raise UnsupportedLeafError(str(error), error.paths) from None


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a handler's coroutine to its end, also where this thread runs an event loop."""
    import asyncio  # takes longer to import than the rest of the facade

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    context = contextvars.copy_context()
    return Work(lambda: context.run(asyncio.run, coroutine)).result()


def read_root_metadata(root: Any) -> dict[str, Any] | None:
    """The custom metadata of a root; None if it has none. CorruptionError."""
    for name in (_FILE, _LEGACY_FILE):
        path = os.path.join(root, _FOLDER, name)
        if os.path.isfile(path):
            found = read_json_object(path)
            if name == _LEGACY_FILE and "custom_metadata" not in found:
                return found
            return dict(found.get("custom_metadata") or {})
    return None


def write_root_metadata(root: Any, custom_metadata: dict[str, Any]) -> None:
    """Writes it, durably, unless there is one already. One process of a run calls it."""
    path = os.path.join(root, _FOLDER, _FILE)
    if os.path.lexists(path):
        return
    durable.make_directories(os.path.dirname(path))
    with contextlib.suppress(OSError):
        durable.sweep(os.path.dirname(path))
    durable.write(path, json.dumps({"custom_metadata": custom_metadata}).encode())
