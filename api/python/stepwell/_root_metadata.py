# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the file METADATA in a store's directory, which holds `open(metadata=)`.

A crash leaves the old file or the new one. What is in the directory is not trusted: the file must
be a plain one, not a link, and a JSON object of bounded size.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import zlib
from collections.abc import Mapping
from typing import Any

from ._backend.backend import Backend
from ._runtime import durable
from ._runtime.arguments import json_text
from ._runtime.files import read_small
from .errors import CorruptionError, InvalidArgumentError, StorageError

_NAME = "METADATA"
_BYTES_MAX = 1 << 20


def metadata_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Encodes the file. Raises InvalidArgumentError."""
    data = json_text(metadata, "metadata").encode()
    if len(data) > _BYTES_MAX:
        raise InvalidArgumentError(f"metadata takes {len(data):,} bytes as JSON; a store's has at "
                                   f"most {_BYTES_MAX:,}: save it as an item")
    return data


def set_metadata(backend: Backend, store: str, data: bytes) -> None:
    """Durable when it returns. Of several processes the first writes it; InvalidArgumentError if
    another was given something else."""
    sums = backend.gather(zlib.crc32(data), "the store's metadata")
    for process, found in enumerate(sums):
        if found != sums[0]:
            raise InvalidArgumentError(f"open(metadata=) is not the same in process {process} as "
                                       "in process 0, which writes it: give all of them the same")
    backend.from_leader(lambda: _write(store, data), "the store's metadata")


def metadata_of(backend: Backend, store: str) -> Any:
    if backend.collective_reads:
        return backend.from_leader(lambda: _read(store), "the store's metadata")
    return _read(store)


def _write(store: str, data: bytes) -> None:
    path = os.path.join(store, _NAME)
    there = None
    with contextlib.suppress(CorruptionError):  # too long to be one
        there = read_small(path, _BYTES_MAX, follow=False)
    if there != data:
        mode = stat.S_IMODE(os.stat(os.path.join(store, "STEPWELL")).st_mode)
        durable.write(path, data, mode=mode)


def _read(store: str) -> Any:
    path = os.path.join(store, _NAME)
    if not os.path.lexists(path):
        return None
    try:
        data = read_small(path, _BYTES_MAX, follow=False)
    except CorruptionError:
        raise
    except OSError as error:
        failed = StorageError(f"{path} cannot be read: {error}")
        failed.errno = error.errno
        raise failed from None
    if data is None:
        raise CorruptionError(f"{path} is not a plain file")
    try:
        metadata = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{path} is not JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise CorruptionError(f"{path} is not a JSON object")
    return metadata
