# SPDX-License-Identifier: Apache-2.0
"""Defines a pushed step: `stepwell.json`, which names every object with size and SHA-256
(README.md, "A pushed step")."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .._runtime.arguments import STEP_MAX
from ..errors import CorruptionError, FormatError
from .object_store import ReadableStore

NAME = "stepwell.json"
# There while a push is under way, or was cut off.
UNDER_WAY = "stepwell.push.json"

_FORMAT = "stepwell-push"
_VERSION = 1
_BYTES_MAX = 256 << 20
_READ_BYTES = 8 << 20


@dataclass(frozen=True)
class Object:
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    step: int
    objects: dict[str, Object]

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.objects.values())

    def encode(self) -> bytes:
        return json.dumps({
            "format": _FORMAT, "version": _VERSION, "step": self.step,
            "objects": {key: {"size": each.size, "sha256": each.sha256}
                        for key, each in sorted(self.objects.items())}}, indent=1).encode()


def is_safe_key(key: str) -> bool:
    """Returns true if the key names a file below a directory, and nothing else."""
    parts = key.split("/")
    return "\0" not in key and not any(part in ("", ".", "..") for part in parts)


def under_way(step: int, keys: set[str]) -> bytes:
    """The object of that name; `keys`: what the push owns there, or will."""
    return json.dumps({"format": _FORMAT, "version": _VERSION, "step": step,
                       "objects": dict.fromkeys(sorted(keys))}, indent=1).encode()


def owned_keys(bucket: ReadableStore, name: str) -> set[str]:
    """Returns the keys that a manifest or an object of a push under way names; none when it is
    damaged."""
    size = bucket.size(name)
    if not size or size > _BYTES_MAX:
        return set()
    try:
        return {key for key in json.loads(bytes(bucket.read(name, 0, size)))["objects"]
                if is_safe_key(key) and key not in (NAME, UNDER_WAY)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def _decoded(where: str, data: bytes) -> Manifest:
    """Whatever the bytes: CorruptionError, or FormatError of a newer version."""
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError("is not Stepwell's")
        if document["version"] != _VERSION:
            raise FormatError(f"{where} is of version {document['version']!r}; this Stepwell "
                              f"reads {_VERSION}")
        objects = {}
        for key, fields in document["objects"].items():
            each = Object(fields["size"], fields["sha256"])
            if not is_safe_key(key) or key in (NAME, UNDER_WAY):
                raise ValueError(f"names {key!r}, which is not an object below it")
            if type(each.size) is not int or each.size < 0:
                raise ValueError(f"has a size of {key!r} that is none")
            if len(each.sha256) != 64 or not set(each.sha256) <= set("0123456789abcdef"):
                raise ValueError(f"has a checksum of {key!r} that is none")
            objects[key] = each
        _check_tree(objects)
        step = document["step"]
        if type(step) is not int or not 0 <= step <= STEP_MAX:
            raise ValueError("has no step's number")
        return Manifest(step, objects)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def _check_tree(objects: dict[str, Object]) -> None:
    for key in objects:
        above = key
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in objects:
                raise ValueError(f"has {above!r} as an object and as a directory")


def read(bucket: ReadableStore) -> Manifest | None:
    """None: it is not there."""
    where = f"{bucket.url}/{NAME}"
    size = bucket.size(NAME)
    while size is not None:
        if not 0 < size <= _BYTES_MAX:
            raise CorruptionError(f"{where} is damaged: it has {size} bytes")
        data = bytes(bucket.read(NAME, 0, size))
        # Another push may have put its own there meanwhile, of another size.
        before, size = size, bucket.size(NAME)
        if size == before:
            return _decoded(where, data)
    return None


def file_sha256(path: str, check: Callable[[], None]) -> Any:
    """The hash object of a file's bytes so far. `check` is called now and then."""
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_READ_BYTES // 2):
            check()
            digest.update(data)
    return digest


def bucket_bytes(bucket: ReadableStore, key: str, start: int, stop: int, check: Callable[[], None]
                 ) -> Iterator[bytes | memoryview]:
    """The object's bytes from `start` to `stop`, piece by piece; fewer where it ends before."""
    while start < stop:
        check()
        data = bucket.read(key, start, min(_READ_BYTES, stop - start))
        if len(data) == 0:
            return
        yield data
        start += len(data)


def bucket_sha256(bucket: ReadableStore, key: str, size: int, check: Callable[[], None]
                  ) -> str | None:
    """Returns the SHA-256 of the object's first `size` bytes; None: it has fewer."""
    import hashlib

    digest = hashlib.sha256()
    for data in bucket_bytes(bucket, key, 0, size, check):
        digest.update(data)
        size -= len(data)
    return digest.hexdigest() if size == 0 else None


def local_keys(root: str) -> list[str]:
    """Files below a directory, as keys, sorted."""
    keys = []
    for folder, _, names in os.walk(root):
        below = os.path.relpath(folder, root)
        keys += [name if below == "." else f"{below}/{name}" for name in names]
    return sorted(keys)
