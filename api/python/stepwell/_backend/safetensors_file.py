# SPDX-License-Identifier: Apache-2.0
"""Writes a safetensors file whole and durable, or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np

from .. import _stepwell
from .._mapping import Index
from .._pytree.dtypes import number_of
from .._runtime import durable
from .._runtime.arguments import Progress
from .._runtime.files import is_inside
from ..errors import InvalidArgumentError, StepExistsError
from .tensors import Tensors

_NAME = "file"
Metadata = Iterable[tuple[str, str]]


class Entry(NamedTuple):
    """A tensor in the file, in the order of the bytes."""

    name: str
    dtype: np.dtype[Any]
    shape: Index
    nbytes: int


def _header(entries: Iterable[Entry], metadata: Metadata) -> bytes:
    return _stepwell.safetensors_header(
        [(entry.name, number_of(entry.dtype) or 0, list(entry.shape), entry.nbytes)
         for entry in entries], list(metadata))


def write_elements(file: IO[bytes], array: np.ndarray[Any, Any]) -> None:
    """`array` is in C order in memory."""
    file.write(array.reshape(-1).view(np.uint8).data)


@contextlib.contextmanager
def whole_file(path: str, store: str, replace: bool) -> Iterator[tuple[str, IO[bytes]]]:
    """A file that gets `path` when the block ends without an exception, with the permissions that
    the store at `store` gives; and a directory for more files, which go."""
    check_outside(store, path)
    if os.path.isdir(path):
        raise StepExistsError(f"{path} is a directory: give the path of a file")
    mode = 0o666
    with contextlib.suppress(FileNotFoundError):  # a run that lies elsewhere says nothing of it
        mode = stat.S_IMODE(os.stat(os.path.join(store, "STEPWELL")).st_mode)
    with durable.Folder(path, replace=replace) as folder:
        inner = os.path.join(folder.temporary, _NAME)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with durable.storage_errors(path), open(
                os.open(inner, flags, 0o666 if mode & 0o077 else 0o600), "w+b") as file:
            yield folder.temporary, file
        folder.commit(_NAME)


def check_outside(store: str, path: str) -> None:
    """InvalidArgumentError for a file inside the store."""
    if is_inside(os.path.dirname(path), store):
        raise InvalidArgumentError(f"{path} is inside the store; export elsewhere")


def write_tensors(path: str, store: str, tensors: Tensors, *, replace: bool,
                  progress: Progress | None) -> int:
    """All tensors of a step, with the step's metadata. Returns the file's size in bytes."""
    entries = [Entry(name, file.dtype, file.shape, file.nbytes)
               for name, file in tensors.by_name.items()]
    total = sum(entry.nbytes for entry in entries)
    done = 0
    boxes = [(name, box) for name, file in tensors.by_name.items() for box in file.boxes()]
    with whole_file(path, store, replace) as (_, file):
        header = _header(entries, tensors.metadata)
        if total:
            os.posix_fallocate(file.fileno(), 0, len(header) + total)  # a full disk says so now
        file.write(header)
        for array in tensors.read(boxes):
            write_elements(file, array)
            done += array.nbytes
            if progress is not None:
                progress(done, total)
        return file.tell()


class Lane:
    """Tensors of one width, whose sizes become known one by one, in a file of their own. One that
    is being written may be taken back."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w+b")  # noqa: SIM115
        self.entries: list[Entry] = []
        self._begin = 0

    def write(self, array: np.ndarray[Any, Any]) -> None:
        write_elements(self.file, array)

    def keep(self, name: str, dtype: np.dtype[Any], shape: Index) -> None:
        """What was written since the last call is this tensor."""
        end = self.file.tell()
        self.entries.append(Entry(name, dtype, shape, end - self._begin))
        self._begin = end

    def take_back(self) -> None:
        """Drops what was written since the last `keep`."""
        self.file.seek(self._begin)
        self.file.truncate()


class Spool:
    """Collects tensors whose sizes become known one by one. `finish` makes one file of them, the
    widest elements first, so that all are aligned."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lanes: dict[tuple[int, str], Lane] = {}

    def lane(self, dtype: np.dtype[Any], what: str) -> Lane:
        """Those of one width and `what` lie behind each other: one at a time is written there."""
        key = dtype.itemsize, what
        if key not in self._lanes:
            self._lanes[key] = Lane(os.path.join(self._folder, f"{what}-{dtype.itemsize}"))
        return self._lanes[key]

    @property
    def entries(self) -> list[Entry]:
        return [entry for key in sorted(self._lanes, reverse=True)
                for entry in self._lanes[key].entries]

    def finish(self, out: IO[bytes], metadata: Metadata) -> int:
        """Returns the file's size in bytes."""
        import shutil  # imports every compressor of Python: not at `import stepwell`

        out.write(_header(self.entries, metadata))
        for key in sorted(self._lanes, reverse=True):
            self._lanes[key].file.seek(0)
            shutil.copyfileobj(self._lanes[key].file, out, 1 << 20)
        return out.tell()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.file.close()
