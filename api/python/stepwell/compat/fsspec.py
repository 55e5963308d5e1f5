# SPDX-License-Identifier: Apache-2.0
"""The steps of a store as files of Orbax checkpoints, through fsspec; read only.

    import fsspec
    import stepwell.compat.fsspec                    # an installed package is found without this

    with fsspec.open("stepwell:///data/run1/99/_CHECKPOINT_METADATA") as file: ...
    filesystem = fsspec.filesystem("stepwell", export={"layout": "v0", "zarr": 2})
    filesystem.get("/data/run1/99", "copy_of_99", recursive=True)

A path is that of a store, the number of a step, and a file of the step's export. The export is made
when a file of the step is first asked for, in a temporary directory: by links on the store's file
system, else as a copy. `close` removes it, and so does the end of the program.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from .. import _store
from .._runtime import durable
from ..errors import PermissionDeniedError, StoreNotFoundError

_STORE_MARK = "STEPWELL"  # in each store's directory


def _read_only(path: Any) -> PermissionDeniedError:
    return PermissionDeniedError(f"{path!r} cannot be changed: steps of Stepwell are read only "
                                 "here")


class StepwellFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """directory: where exports are made; None: the system's for temporary files. export: arguments
    of `Store.export`."""

    protocol = "stepwell"

    def __init__(self, *args: Any, directory: str | os.PathLike[str] | None = None,
                 export: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._directory = None if directory is None else os.fspath(directory)
        self._export = dict(export or {})
        self._local = LocalFileSystem()
        self._lock = threading.RLock()
        self._stores: dict[str, _store.Store] = {}
        # By store and step: when the step was committed, its export, and what removes that.
        self._exports: dict[tuple[str, int], tuple[Any, durable.Scratch]] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        name = os.fspath(path).removeprefix("stepwell://").removeprefix("stepwell:")
        return os.path.abspath(name)

    # ---- which file is meant ----

    def _located(self, path: Any) -> tuple[_store.Store, int | None, str]:
        """The store that a path leads into, the step in it, and the name within the step."""
        name = self._strip_protocol(path)
        root = name
        while not os.path.isfile(os.path.join(root, _STORE_MARK)):
            above = os.path.dirname(root)
            if above == root:
                raise StoreNotFoundError(f"{name!r} is not in a store of Stepwell")
            root = above
        step, _, rest = os.path.relpath(name, root).partition("/")
        if step == ".":
            return self._store_at(root), None, ""
        if not step.isdecimal() or int(step) not in self._store_at(root):
            raise FileNotFoundError(f"{root!r} has no step {step}; it has "
                                    f"{self._store_at(root).steps()}")
        return self._store_at(root), int(step), rest

    def _store_at(self, root: str) -> _store.Store:
        with self._lock:
            if root not in self._stores:
                self._stores[root] = _store.open(root, mode="r")
            return self._stores[root]

    def _exported(self, store: _store.Store, step: int, rest: str) -> str:
        """Returns the path of a step's file in the step's export."""
        with self._lock:
            time = store[step].time
            made = self._exports.get((store.path, step))
            if made is None or made[0] != time:
                folder = durable.Scratch("stepwell-fsspec-", self._directory)
                store.export(step, os.path.join(folder.path, "export"), **self._export)
                made = self._exports[store.path, step] = time, folder
        top = os.path.join(made[1].path, "export")
        if self._export.get("layout") == "v0":  # the root of a manager
            (name,) = os.listdir(top)
            top = os.path.join(top, name)
        return os.path.join(top, rest) if rest else top

    # ---- the interface of fsspec ----

    def info(self, path: Any, **options: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        store, step, rest = self._located(name)
        if step is None or not rest:
            return {"name": name, "size": 0, "type": "directory"}
        found = self._local.info(self._exported(store, step, rest))
        return {"name": name, "size": found["size"], "type": found["type"]}

    def ls(self, path: Any, detail: bool = True, **options: Any) -> list[Any]:
        name = self._strip_protocol(path)
        store, step, rest = self._located(name)
        if step is None:
            found = [self.info(f"{name}/{each}") for each in store.steps()]
        elif self.info(name)["type"] == "file":
            found = [self.info(name)]
        else:
            found = [self.info(f"{name}/{each}")
                     for each in sorted(os.listdir(self._exported(store, step, rest)))]
        return found if detail else [each["name"] for each in found]

    def created(self, path: Any) -> Any:
        store, step, _ = self._located(path)
        if step is None:
            raise IsADirectoryError(f"{path!r} is a store; its steps have times")
        return store[step].time

    modified = created

    def _open(self, path: Any, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
              cache_options: Any = None, **options: Any) -> Any:
        if mode != "rb":
            raise _read_only(path)
        store, step, rest = self._located(path)
        if step is None or not rest:
            raise IsADirectoryError(f"{path!r} is a directory")
        # fsspec's own kind of file, which knows its size: cat_file and read_block ask for that.
        return self._local._open(self._exported(store, step, rest), "rb")

    # ---- what a step refuses, and fsspec would pass over in silence ----

    def mkdir(self, path: Any, create_parents: bool = True, **options: Any) -> None:
        raise _read_only(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        if not (exist_ok and self.isdir(path)):
            raise _read_only(path)

    def rmdir(self, path: Any) -> None:
        raise _read_only(path)

    def _rm(self, path: Any) -> None:
        raise _read_only(path)

    def cp_file(self, path1: Any, path2: Any, **options: Any) -> None:
        raise _read_only(path2)

    def close(self) -> None:
        """Removes the exports and closes the stores. The file system may be used again."""
        with self._lock:
            for _, folder in self._exports.values():
                folder.close()
            self._exports.clear()
            for store in self._stores.values():
                store.close()
            self._stores.clear()


register_implementation("stepwell", StepwellFileSystem, clobber=True)
