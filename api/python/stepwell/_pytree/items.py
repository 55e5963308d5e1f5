# SPDX-License-Identifier: Apache-2.0
"""Items that are not pytrees of arrays: JSON, and files as other libraries write them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from .._runtime.files import local_path
from .._stepwell import ItemKind
from .._text import brief, counted
from ..errors import CorruptionError, InvalidArgumentError


class Json:
    """An item that is JSON: `save(7, state, items={"data": Json({"epoch": 3})})`.

    `load` gives the value back; in exports and views it is what Orbax's JSON handlers read.
    `value` is made of dicts with str keys, lists, str, int, float, bool and None, with ints of any
    size; tuples come back as lists. Anything else raises InvalidArgumentError.
    """

    def __init__(self, value: Any) -> None:
        try:
            self.value = json.loads(json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{brief(value)} is not JSON: {error}") from None

    def __repr__(self) -> str:
        return f"Json({brief(self.value)})"


class Files:
    """An item that is a directory of files, as a handler of another library wrote it:
    `save(7, state, items={"data": Files("/tmp/iterator")})`.

    The files are read when this is made. `load` gives {relative path: bytes}, with None for each
    empty directory, whose path ends in "/". Exports and views have the files as they were;
    `store[7].write_files("data", folder)` writes them. Raises InvalidArgumentError for what is
    neither a file nor a directory; symbolic links are not followed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.contents: dict[str, bytes | None] = {}
        root = os.fsdecode(folder)
        if not os.path.isdir(root):
            raise InvalidArgumentError(f"Files takes a directory, not {root!r}")
        self._read(root, "")

    def _read(self, folder: str, below: str) -> None:
        names = sorted(os.listdir(folder))
        if not names and below:
            self.contents[below] = None
        for name in names:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                self._read(path, f"{below}{name}/")
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    self.contents[below + name] = file.read()
            else:
                raise InvalidArgumentError(f"Files: {path!r} is neither a file nor a directory")

    def __repr__(self) -> str:
        return f"Files({counted(len(self.contents), 'file')})"


def unwrapped(item: Any) -> tuple[Any, ItemKind]:
    """Returns the pytree that is saved for an item, and the item's kind."""
    if isinstance(item, Json):
        return item.value, ItemKind.JSON
    if isinstance(item, Files):
        return item.contents, ItemKind.FILES
    return item, ItemKind.TREE


def write_files(contents: Any, folder: str | os.PathLike[str], what: str) -> None:
    """Writes what `load` gives for an item of files. `what`: the item, for messages."""
    target = local_path(folder)
    os.makedirs(target, exist_ok=True)
    if os.listdir(target):
        raise InvalidArgumentError(f"write_files: {target!r} is not empty")
    if not isinstance(contents, Mapping) or not all(
            isinstance(data, bytes) or (data is None and path.endswith("/"))
            for path, data in contents.items()):
        raise InvalidArgumentError(f"{what} is not an item of files")
    for path, data in contents.items():
        parts = path.removesuffix("/").split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise CorruptionError(f"{what} has a file {path!r}, which lies elsewhere")
        where = os.path.join(target, *parts)
        os.makedirs(where if data is None else os.path.dirname(where), exist_ok=True)
        if data is not None:
            with open(where, "xb") as file:
                file.write(data)
