# SPDX-License-Identifier: Apache-2.0
"""What `open(metadata=)` says of a whole store: the file METADATA in its directory.

A crash leaves the old file or the new one. What is in the directory is not trusted: the file must
be a plain one, not a link, and a JSON object of bounded size.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from ._backend import Backend
from ._runtime.arguments import json_text
from ._runtime.files import sync_folder
from .errors import CorruptionError, InvalidArgumentError, NoSpaceError, StorageError

_NAME = "METADATA"
_BYTES_MAX = 1 << 20


def metadata_bytes(metadata: Mapping[str, Any]) -> bytes:
    """As the file has it. Raises InvalidArgumentError."""
    data = json_text(metadata, "metadata").encode()
    if len(data) > _BYTES_MAX:
        raise InvalidArgumentError(f"metadata takes {len(data):,} bytes as JSON; a store's has at "
                                   f"most {_BYTES_MAX:,}: save it as an item")
    return data


def set_metadata(backend: Backend, store: str, data: bytes) -> None:
    """Durable when it returns. Of several processes the first writes it."""
    backend.from_leader(lambda: _write(store, data), "the store's metadata")


def metadata_of(backend: Backend, store: str) -> Any:
    if backend.collective_reads:
        return backend.from_leader(lambda: _read(store), "the store's metadata")
    return _read(store)


def _write(store: str, data: bytes) -> None:
    path = os.path.join(store, _NAME)
    temporary = path + ".new"
    try:
        if _content(path) == data:
            return
        if os.path.lexists(temporary):  # of a process that died
            os.unlink(temporary)
        mode = stat.S_IMODE(os.stat(os.path.join(store, "STEPWELL")).st_mode)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(file, mode)
            left = memoryview(data)
            while left:
                left = left[os.write(file, left):]
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, path)
        sync_folder(store)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        failed = (NoSpaceError if full else StorageError)(f"{path} cannot be written: {error}")
        failed.errno = error.errno
        raise failed from None


def _content(path: str) -> bytes | None:
    """What is in the file, at most a byte more than it may have; None where there is no plain
    file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        with open(file, "rb", closefd=False) as opened:
            return opened.read(_BYTES_MAX + 1)
    finally:
        os.close(file)


def _read(store: str) -> Any:
    path = os.path.join(store, _NAME)
    if not os.path.lexists(path):
        return None
    try:
        data = _content(path)
    except OSError as error:
        failed = StorageError(f"{path} cannot be read: {error}")
        failed.errno = error.errno
        raise failed from None
    if data is None:
        raise CorruptionError(f"{path} is not a plain file")
    if len(data) > _BYTES_MAX:
        raise CorruptionError(f"{path} has more than {_BYTES_MAX:,} bytes")
    try:
        metadata = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{path} is not JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise CorruptionError(f"{path} is not a JSON object")
    return metadata
