# SPDX-License-Identifier: Apache-2.0
"""Object stores behind one small face: directories, obstore's stores, and fsspec's file systems as
the second choice. Both libraries are optional and imported when they are needed."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .._runtime.files import with_slashes
from ..errors import Error, InvalidArgumentError
from .directory_store import DirectoryStore
from .transfer import without_secrets

# A larger object is uploaded in parts of so many bytes, so many at a time. The libraries give no
# name for an upload that was cut off, so its parts are lost: an object starts anew.
PART_BYTES = 8 << 20
PARTS_IN_FLIGHT = 4

# Those of obstore.store.from_url. (Its memory:/// is a new store each time; fsspec's is one.)
_OBSTORE_SCHEMES = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https",
                    "file"}

# Options of obstore's HTTP client, which it wants apart from those of the store: it panics over
# them there. On a command line they are options as all others.
_CLIENT_OPTIONS = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
    "default_headers", "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
    "proxy_ca_certificate", "proxy_excludes", "proxy_url", "timeout", "user_agent"}


class ReadableStore(Protocol):
    """Objects by key below one place, to read. Every call may come from several threads at once and
    raises what its library raises."""

    url: str  # for messages: without passwords

    def size(self, key: str) -> int | None:
        """In bytes; None: there is no such object."""

    def read(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Exactly this range, which is not empty, or fewer bytes at the object's end."""

    def list(self) -> dict[str, int]:
        """All keys, and sizes in bytes."""


@runtime_checkable
class ObjectStore(ReadableStore, Protocol):
    """The same, to read and write."""

    def put(self, key: str, data: bytes) -> None:
        """Replaces an object."""

    def put_file(self, key: str, path: str) -> None:
        """The same from a file, in parts: memory is bounded."""

    def delete(self, key: str) -> None: ...


class Obstore:
    """A store of obstore, below a prefix. obstore's threads are not in a forked child, where its
    calls would wait for ever, so that a child whose parent has used it is refused."""

    _is_used = _was_used_by_parent = False

    def __init__(self, store: Any, prefix: str, url: str) -> None:
        if Obstore._was_used_by_parent:
            raise Error(f"{url}: this process was forked from one that uses obstore, whose threads "
                        "are not here: start it anew (multiprocessing's \"spawn\" or "
                        "\"forkserver\")")
        Obstore._is_used = True
        self._obstore = importlib.import_module("obstore")
        self._not_found = (self._obstore.exceptions.NotFoundError, FileNotFoundError)
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.url = url

    def size(self, key: str) -> int | None:
        try:
            return int(self._obstore.head(self._store, self._prefix + key)["size"])
        except self._not_found:
            return None

    def read(self, key: str, start: int, length: int) -> bytes | memoryview:
        return memoryview(self._obstore.get_range(self._store, self._prefix + key, start=start,
                                                  length=length))

    def put(self, key: str, data: bytes) -> None:
        self._obstore.put(self._store, self._prefix + key, data)

    def put_file(self, key: str, path: str) -> None:
        self._obstore.put(self._store, self._prefix + key, Path(path), chunk_size=PART_BYTES,
                          max_concurrency=PARTS_IN_FLIGHT)

    def delete(self, key: str) -> None:
        with contextlib.suppress(*self._not_found):
            self._obstore.delete(self._store, self._prefix + key)

    def list(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with contextlib.suppress(*self._not_found):  # a directory that is not there
            for batch in self._obstore.list(self._store, self._prefix or None):
                for meta in batch:
                    found[str(meta["path"]).removeprefix(self._prefix)] = int(meta["size"])
        return found


def _after_fork() -> None:
    Obstore._was_used_by_parent |= Obstore._is_used


os.register_at_fork(after_in_child=_after_fork)


class FileSystemStore:
    """A file system of fsspec, below a path."""

    def __init__(self, file_system: Any, root: str, url: str) -> None:
        self._fs = file_system
        # The root as the file system itself spells it, because find() answers in that spelling.
        self._root = str(file_system._strip_protocol(root)).rstrip("/")
        self.url = url

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def size(self, key: str) -> int | None:
        path = self._path(key)
        self._fs.invalidate_cache(path.rpartition("/")[0])  # others may have changed it since
        try:
            info = self._fs.info(path)
        except FileNotFoundError:
            return None
        return None if info["type"] == "directory" else int(info["size"])

    def read(self, key: str, start: int, length: int) -> bytes | memoryview:
        return bytes(self._fs.cat_file(self._path(key), start=start, end=start + length))

    def _make_parent(self, key: str) -> None:
        self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        self._make_parent(key)
        self._fs.pipe_file(self._path(key), data)

    def put_file(self, key: str, path: str) -> None:
        self._make_parent(key)
        self._fs.put_file(path, self._path(key))

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    def list(self) -> dict[str, int]:
        self._fs.invalidate_cache()
        found = self._fs.find(self._root, detail=True)
        return {name.removeprefix(self._root + "/"): int(info["size"])
                for name, info in found.items()}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _no_library(url: str) -> Error:
    return Error(f"{url}: object stores need obstore, which is not installed here: "
                 "pip install 'obstore>=0.8' (or fsspec, and its package for this kind of URL)")


def local_path(place: Any) -> str | None:
    """Returns the path of a place in the machine's own file system; None: it is elsewhere.
    InvalidArgumentError for a URL with one slash: a directory of that name would be made."""
    if not isinstance(place, (str, os.PathLike)):
        return None
    url = os.fsdecode(place)
    meant = with_slashes(url)
    if meant is not None:
        raise InvalidArgumentError(
            f"{without_secrets(meant)!r} was given with too few slashes (pathlib takes one away)")
    if url.startswith("file://"):
        path = url.removeprefix("file://")
        return os.path.abspath(path.removeprefix("localhost") if path.startswith("localhost/")
                               else path)
    return None if "://" in url else os.path.abspath(url)


def _for_obstore(options: Mapping[str, Any]) -> dict[str, Any]:
    client = {key: value for key, value in options.items() if key in _CLIENT_OPTIONS}
    others = {key: value for key, value in options.items() if key not in client}
    if client:
        others["client_options"] = {**client, **others.get("client_options", {})}
    return others


def _of_url(url: str, prefix: str, options: Mapping[str, Any]) -> ObjectStore | DirectoryStore:
    scheme = url.partition("://")[0]
    local = local_path(url)
    shown = "/".join([without_secrets(url).rstrip("/"), prefix.strip("/")]).rstrip("/")
    if local is not None:
        if options:
            raise InvalidArgumentError(f"{local} is a directory; storage_options are for URLs of "
                                       "object stores")
        return DirectoryStore(os.path.join(local, prefix.strip("/")).rstrip("/"))
    obstore = _library("obstore.store")
    if obstore is not None and scheme in _OBSTORE_SCHEMES:
        return Obstore(obstore.from_url(url, **_for_obstore(options)), prefix, shown)
    fsspec = _library("fsspec")
    if fsspec is None:
        raise _no_library(shown)
    try:
        file_system, root = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        if scheme in _OBSTORE_SCHEMES:
            raise _no_library(shown) from error
        raise Error(f"{shown}: {without_secrets(str(error))}") from error
    path = f"{root.rstrip('/')}/{prefix.strip('/')}".rstrip("/")
    return FileSystemStore(file_system, path, shown)


def open_object_store(place: Any, prefix: str, options: Mapping[str, Any] | None
                      ) -> ObjectStore | DirectoryStore:
    """`place`: a URL or local path, a store of obstore, a file system of fsspec, or an ObjectStore.
    Of a local path a DirectoryStore; nothing is made. Raises Error when no library is there for it,
    and what the library raises."""
    if isinstance(place, (str, os.PathLike)):
        return _of_url(os.fsdecode(place), prefix, options or {})
    if options:
        raise InvalidArgumentError("storage_options are for URLs; this is a store already")
    if hasattr(place, "cat_file") and hasattr(place, "_strip_protocol"):
        if not prefix.strip("/"):
            raise InvalidArgumentError("prefix says where in the file system")
        return FileSystemStore(place, prefix, f"{type(place).__name__}:{prefix}")
    if type(place).__module__.split(".")[0] in ("obstore", "_obstore"):
        return Obstore(place, prefix, without_secrets(f"{place!r}/{prefix}").rstrip("/"))
    if isinstance(place, ObjectStore):
        if prefix:
            raise InvalidArgumentError("an object store of your own has its prefix already")
        return place
    raise InvalidArgumentError(f"{place!r} is not a URL, a store of obstore, or a file system of "
                               "fsspec")
