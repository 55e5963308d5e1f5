# SPDX-License-Identifier: Apache-2.0
"""Places of files: local ones only; and small files that other programs may have written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..errors import CorruptionError, InvalidArgumentError

T = TypeVar("T")

# Path("gs://bucket/run") of pathlib is "gs:/bucket/run".
_ONE_SLASH = re.compile("(gs|gcs|s3|s3a|az|azure|abfss?|adl|r2|hdfs|https?|file|memory):/(?!/)")
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
JSON_BYTES_MAX = 64 << 20


def local_path(path: str | bytes | os.PathLike[str]) -> str:
    """The absolute path of a file or directory. InvalidArgumentError for a URL, of which
    os.path.abspath would make a directory named after the scheme."""
    name = os.fsdecode(path)
    if is_url(name):
        raise InvalidArgumentError(
            f"{name!r} is a URL; stores, checkpoints and views are directories on a local disk. "
            "Copy steps to and from object stores with `Store.push` and `Store.pull`")
    return os.path.abspath(name)


def is_url(place: str) -> bool:
    """Returns true for a URL, also for one of those that have one slash where two belong."""
    return bool(_URL.match(place) or _ONE_SLASH.match(place))


def with_slashes(place: str) -> str | None:
    """The URL that one with one slash where two belong was meant to be; None for other places."""
    match = _ONE_SLASH.match(place)
    if match is None:
        return None
    rest = place[match.end():]
    return f"file:///{rest}" if match[1] == "file" else f"{match[1]}://{rest}"


def engine_path(path: str | os.PathLike[str]) -> str:
    """A path as the engine takes it: what its bytes are in UTF-8."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def is_inside(path: str, folder: str) -> bool:
    """Returns true for a folder itself and for what is below it, whatever links lead there."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def read_small(path: str, bytes_max: int, *, follow: bool = True) -> bytes | None:
    """A regular file's bytes; None where there is none, or something else has the name: nothing
    waits for the other end of a FIFO. CorruptionError for a longer file, OSError.

    follow: False takes a symbolic link for something else."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        file = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        data = bytearray()
        while chunk := os.read(file, min(1 << 20, bytes_max + 1 - len(data))):
            data += chunk
            if len(data) > bytes_max:
                raise CorruptionError(f"{path} has more than {bytes_max:,} bytes")
        return bytes(data)
    finally:
        os.close(file)


def read_json(path: str, bytes_max: int = JSON_BYTES_MAX) -> Any:
    """The JSON in a regular file. FileNotFoundError where there is none, CorruptionError for what
    is not JSON, or too long or too deep."""
    data = read_small(path, bytes_max)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
    return json_of(data, path)


def json_of(text: str | bytes, what: str) -> Any:
    """The JSON in what was saved. CorruptionError for what is none, or too deep; `what` names it.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{what} is not JSON: {type(error).__name__}: {error}") from None


def read_json_object(path: str, bytes_max: int = JSON_BYTES_MAX) -> dict[str, Any]:
    """Reads a JSON object. Returns {} if there is no file, or if it holds another value."""
    try:
        value = read_json(path, bytes_max)
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def undisturbed(path: str, read: Callable[[], T]) -> T:
    """Returns the result of `read` for the directory at `path`. If another directory takes its
    place meanwhile, the files are of both, whether or not they look damaged: then `read` is called
    again."""
    while True:
        with _held(path) as before:
            try:
                given = read()
            except Exception:
                if key_of(path) == before:
                    raise
            else:
                if key_of(path) == before:
                    return given


@contextlib.contextmanager
def _held(path: str) -> Iterator[tuple[int, int] | None]:
    """Which directory it is, none if there is none. No other one gets its inode meanwhile."""
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(file)
        yield status.st_dev, status.st_ino
    finally:
        os.close(file)


def key_of(path: str) -> tuple[int, int] | None:
    """Returns a key that tells a directory from any other, also once it is renamed; None if there
    is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
