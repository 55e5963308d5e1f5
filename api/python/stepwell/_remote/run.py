# SPDX-License-Identifier: Apache-2.0
"""A pushed run: many steps below one prefix, which share what they have in common (README.md, "A
pushed run"). What lists and markers mean, C++ knows (format/pushed.h)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from .. import _stepwell
from .._runtime.arguments import STEP_MAX
from ..errors import CorruptionError, Error, FormatError
from .directory_store import DirectoryStore
from .object_store import ObjectStore, ReadableStore
from .push_manifest import bucket_bytes
from .run_directory import RunDirectory

MARK = "stepwell-run.json"
_FORMAT, _VERSION = "stepwell-run", 1
_MARK_BYTES_MAX = 1 << 16
_STEP = re.compile(r"steps/([0-9]{20})")
_DATA = re.compile(r"data/([0-9a-f]{64}-[0-9a-f]{16})")
_MARKER = re.compile(r"pushing/([0-9a-f]{32})")


class RunStore(ReadableStore, Protocol):
    """A place that runs are pushed to."""

    def put(self, key: str, data: bytes) -> None:
        """Replaces an object, which readers see whole: the old one or the new."""

    def delete(self, key: str) -> None:
        """Removes an object, if it exists."""


class Listing(NamedTuple):
    """The objects that a run has at one time. Objects that no push made are not in it."""

    steps: list[int]  # ascending
    data: dict[str, int]  # sizes in bytes, by name
    markers: list[str]


def step_key(step: int) -> str:
    return f"steps/{step:020d}"


def data_key(name: str) -> str:
    return f"data/{name}"


def marker_key(name: str) -> str:
    return f"pushing/{name}"


def is_marker(name: str) -> bool:
    return _MARKER.fullmatch(marker_key(name)) is not None


def listing_of(keys: Iterable[tuple[str, int]]) -> Listing:
    steps, data, markers = [], {}, []
    for key, size in keys:
        if (match := _STEP.fullmatch(key)) and int(match[1]) <= STEP_MAX:
            steps.append(int(match[1]))
        elif match := _DATA.fullmatch(key):
            data[match[1]] = size
        elif match := _MARKER.fullmatch(key):
            markers.append(match[1])
    return Listing(sorted(steps), data, markers)


def listing(bucket: ReadableStore) -> Listing:
    return listing_of(bucket.list().items())


def mark() -> bytes:
    return json.dumps({"format": _FORMAT, "version": _VERSION}).encode()


def is_run(bucket: ReadableStore) -> bool:
    """Returns true if the place is a run. CorruptionError, FormatError for a newer version."""
    size = bucket.size(MARK)
    if size is None:
        return False
    where = f"{bucket.url}/{MARK}"
    if not 0 < size <= _MARK_BYTES_MAX:
        raise CorruptionError(f"{where} is damaged: it has {size} bytes")
    try:
        document = json.loads(bytes(bucket.read(MARK, 0, size)))
        if document["format"] != _FORMAT or type(document["version"]) is not int:
            raise ValueError("is not Stepwell's")
        version = document["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(f"{where} is damaged: {type(error).__name__}: {error}") from error
    if version != _VERSION:
        raise FormatError(f"{where} is of version {version}; this Stepwell reads {_VERSION}")
    return True


def writable(bucket: ObjectStore | DirectoryStore, mode: int = 0o700) -> RunStore:
    """`mode`: permissions of new directories, where the place is one."""
    return RunDirectory(bucket.url, mode) if isinstance(bucket, DirectoryStore) else bucket


def _nothing() -> None:
    pass


def read_range(bucket: ReadableStore, key: str, start: int, stop: int) -> bytes | None:
    """The bytes, fewer where the object ends before; None: it is not there."""
    size = bucket.size(key)
    if size is None:
        return None
    try:
        return b"".join(bucket_bytes(bucket, key, start, min(stop, size), _nothing))
    except Exception:
        if bucket.size(key) != size:  # it went, or was replaced, meanwhile
            return read_range(bucket, key, start, stop)
        raise


def damaged(bucket: ReadableStore, key: str, error: Error) -> Error:
    """What is wrong with a list, for its reader: with the list's name."""
    return type(error)(f"{bucket.url}/{key}: {error}")


def head_bytes(bucket: ReadableStore, key: str, header: bytes) -> int:
    """How long a list's header and head are. CorruptionError, FormatError, with the list's name."""
    try:
        return _stepwell.pushed_head_bytes(header)
    except (CorruptionError, FormatError) as error:
        raise damaged(bucket, key, error) from None


def read_header(bucket: ReadableStore, key: str) -> bytes | None:
    """The beginning of a list or marker, which differs from that of any other; None: it is not
    there."""
    return read_range(bucket, key, 0, _stepwell.PUSHED_HEADER_BYTES)


def read_list(bucket: ReadableStore, key: str) -> bytes | None:
    """A whole list, as it was at one time; None: it is not there. CorruptionError, FormatError: it
    has not the size that its header says, and nothing more of it is read."""
    while (header := read_header(bucket, key)) is not None:
        size = bucket.size(key)
        try:
            wanted = _stepwell.pushed_list_bytes(header)
            if size is not None and size != wanted:
                raise CorruptionError(f"a list of {size} bytes that says {wanted}")
        except (CorruptionError, FormatError) as error:
            if header == read_header(bucket, key):
                raise damaged(bucket, key, error) from None
            continue
        data = read_range(bucket, key, 0, wanted)
        # Another push may have replaced it while it was read, piece by piece.
        if data is not None and bucket.size(key) == size and (
                data[:_stepwell.PUSHED_HEADER_BYTES] == header == read_header(bucket, key)):
            return data
    return None


def read_head(bucket: ReadableStore, key: str) -> _stepwell.PushedHead | None:
    """Reads what a list or marker says of objects; None: it is not there. CorruptionError,
    FormatError."""
    while (header := read_header(bucket, key)) is not None:
        try:
            data = read_range(bucket, key, 0, _stepwell.pushed_head_bytes(header))
            if data is not None:
                return _stepwell.pushed_head(data)
        except (CorruptionError, FormatError) as error:
            if header == read_header(bucket, key):
                raise damaged(bucket, key, error) from None
    return None
