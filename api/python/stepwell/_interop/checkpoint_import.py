# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other libraries: which step a path means, and files as trees. The libraries of the
files are imported when needed.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from typing import Any, SupportsIndex

import ml_dtypes
import numpy as np

from .._backend.orbax_source import (OrbaxSource, check_new, checked_path, exists, no_number,
                                     no_step, orbax_root)
from .._handle import SaveHandle
from .._lifetime import OpenStore
from .._runtime.arguments import IfExists, if_exists_of, item_names, step_number
from .._runtime.files import local_path
from .._stepwell import SaveRequest
from ..errors import CorruptionError, Error, FormatError, InvalidArgumentError, StorageError
from .file_bounds import check_fits, check_regular, npz_bytes

SUFFIXES = (".msgpack", ".eqx", ".safetensors", ".npz")


def _is_file(src: str | os.PathLike[str], together: bool) -> bool:
    """Returns true if the path is a file, and not a directory. When several processes ask
    `together`, some may not see it."""
    if together and not os.path.exists(local_path(src)):
        return local_path(src).lower().endswith(SUFFIXES)
    path = checked_path(src)
    if os.path.isdir(path):
        return False
    check_regular(path)
    return True


def step_of_file(path: str) -> int:
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix[1:].isdigit():  # Flax's steps may be floats, a store's are not
        stem += suffix
    match = re.search(r"(?:^|[_-])([0-9]+)$", stem)
    if match is None:
        raise no_number(path)
    return int(match[1])


def _library(name: str, suffix: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Error(f"{suffix} files are read with {name.split('.')[0]}, which cannot be "
                    f"imported here: {error}") from error


def _read_msgpack(path: str, like: Any) -> Any:
    serialization = _library("flax.serialization", ".msgpack")
    check_fits(path, 2 * os.path.getsize(path))  # its bytes, and the arrays
    with open(path, "rb") as file:
        data = file.read()
    if like is None:
        return serialization.msgpack_restore(data)
    return serialization.from_bytes(like, data)


def _read_equinox(path: str, like: Any) -> Any:
    if like is None:
        raise InvalidArgumentError(f"{path} holds leaves alone: like= (--like in the program) says "
                                   "of which tree")
    check_fits(path, os.path.getsize(path))
    return _library("equinox", ".eqx").tree_deserialise_leaves(path, like)


def _is_flax(path: str) -> bool:
    """Returns true if a file begins as flax.training.checkpoints writes it, without a suffix: a
    dict of msgpack with a text as its first key."""
    with open(path, "rb") as file:
        head = file.read(6)
    if not head:
        return False
    size = {0xde: 3, 0xdf: 5}.get(head[0], 1 if 0x80 < head[0] <= 0x8f else 0)
    return bool(size) and len(head) > size and (0xa0 <= head[size] <= 0xbf
                                                or 0xd9 <= head[size] <= 0xdb)


# NumPy itself has no such types, so the library makes no arrays of them.
_FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz",
           "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
           "F8_E8M0": "float8_e8m0fnu"}


def _read_safetensors(path: str) -> dict[str, Any]:
    library = _library("safetensors", ".safetensors")
    check_fits(path, os.path.getsize(path))
    with library.safe_open(path, framework="np") as opened:
        names = list(opened.keys())
        float8 = {name: _FLOAT8[word] for name in names
                  if (word := opened.get_slice(name).get_dtype()) in _FLOAT8}
        arrays = {name: opened.get_tensor(name) for name in names if name not in float8}
    if float8:
        check_fits(path, 3 * os.path.getsize(path))
        with open(path, "rb") as file:
            tensors = dict(library.deserialize(file.read()))
        for name, word in float8.items():
            fields = tensors[name]
            dtype = np.dtype(getattr(ml_dtypes, word))
            arrays[name] = np.frombuffer(fields["data"], dtype).reshape(fields["shape"])
    return {name: arrays[name] for name in names}


def _read_npz(path: str) -> dict[str, Any]:
    check_fits(path, npz_bytes(path))
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_file(path: str, like: Any) -> Any:
    """The tree in a regular file; `like` may be None: not given."""
    check_regular(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES and _is_flax(path):
        suffix = ".msgpack"
    if suffix not in SUFFIXES:
        raise FormatError(f"{path}: a file of an unknown kind; there are {', '.join(SUFFIXES)}, "
                          "and directories of Orbax")
    if like is not None and suffix in (".safetensors", ".npz"):
        raise InvalidArgumentError(f"{suffix} files are flat dicts by name: like is not for them")
    try:
        if suffix == ".msgpack":
            return _read_msgpack(path, like)
        if suffix == ".eqx":
            return _read_equinox(path, like)
        return _read_safetensors(path) if suffix == ".safetensors" else _read_npz(path)
    except Error:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # not what is in it
            raise StorageError(error.errno, f"{path}: {error.strerror}") from error
        raise CorruptionError(f"{path}: {type(error).__name__}: {error}") from error


def import_checkpoint(self: OpenStore, src: str | os.PathLike[str],
                      step: SupportsIndex | None = None, *, items: Iterable[str] | None = None,
                      like: Any = None, if_exists: IfExists = "error",
                      verify: bool = False) -> SaveHandle:
    """Saves a checkpoint of another library as a step. Nothing is written to `src`.

    src: a directory of Orbax (v0 or v1): a step, an item of one, or, with `step`, the root of a
        CheckpointManager. Or a file: `.msgpack` (Flax), `checkpoint_40` (what Flax's own
        save_checkpoint writes), `.eqx` (Equinox), `.safetensors`, `.npz`; the libraries are needed
        for all but the last.
    step: the step's number; None: the number that the name of `src` ends in ("7", "ckpt_7"), or
        that of the step that `export` made it of.
    items: names of items, as the Orbax checkpoint has them; None: all.
    like: a tree of the same structure, for files: `.eqx` needs it, `.msgpack` takes it
        (`flax.serialization.from_bytes`).
    if_exists: as in `save`.
    verify: of directories of Orbax, read the source a second time when the step is durable, and
        compare it with what was stored: Orbax has no checksums, so nothing else finds bytes that
        came in wrong. Where they differ the step is deleted again (what it replaced does not come
        back) and CorruptionError raised. Returns after that. Bytes that are wrong on the disk
        itself are wrong in both reads. One process only. Exports of Stepwell have checksums, which
        every import checks.

    Items that are neither pytrees nor JSON (Grain iterators, random keys, Protos) are kept as
    files, as if saved with `stepwell.Files`; `export` writes them back byte for byte.

    From Orbax, `load` gives what Orbax restores without a target, but for arrays, which are
    NumPy's (jax arrays with `like`): tuples come as lists, other nodes as dicts, scalars as
    Python numbers, PRNG keys as keys with `like`. The item "default" of managers that were
    told no names, or "pytree" of Orbax v1, becomes "state". From an export of Stepwell comes the
    tree that was saved, item names, containers and weak types included. JSON items become trees
    of Python values; `metrics` and the custom metadata become the step's own (metadata of the root
    or of items: at "orbax" there).

    Under `jax.distributed` all processes call it, and those that see the checkpoint read and save
    shares of it, as equal as its chunks allow; process 0 must see it, others must not see another
    one there. What is then missing or damaged is the handle's error, on all of them. Files (`like`)
    are read by every process.

    Reads all of the checkpoint (its share) into memory before it saves. Raises
    CheckpointNotFoundError, InvalidArgumentError for what is not a checkpoint or has no number,
    PathNotFoundError for items, CorruptionError (missing or damaged files; the message names item,
    leaf and file), FormatError for what is not read, and what `save` raises.
    """
    self._check()
    self._check_writable()
    if_exists_of(if_exists)
    names = item_names(items)
    wanted = None if step is None else step_number(step)
    if _is_file(src, self._backend.collective):
        path = checked_path(src)
        number = step_number(step_of_file(path)) if wanted is None else wanted
        if items is not None or verify:
            raise InvalidArgumentError("items and verify are of Orbax checkpoints; this is a file")
        if not self._backend.collective:
            check_new(self.path, self._backend.steps(), number, if_exists)
        tree = read_file(path, like)
        return self._save(SaveRequest(step=number, if_exists=if_exists_of(if_exists),
                                      is_copy=True),
                          {"state": tree}, None)
    if like is not None:
        raise InvalidArgumentError("an Orbax checkpoint has its structure: like is for files")
    if verify and self._backend.collective:
        raise InvalidArgumentError("verify is for imports by one process")
    source = OrbaxSource(local_path(src), wanted, names)
    handle = self._track(self._backend.import_orbax(source, if_exists, None))
    if verify:
        _verify_import(self, handle, source)
    return handle


def _verify_import(self: OpenStore, handle: SaveHandle, source: OrbaxSource) -> None:
    handle.result()
    if handle.skipped:
        return
    found, number = source.locate()
    try:
        self._backend.writer.verify_import(number, found, source.items)
    except CorruptionError as error:
        self._backend.change("delete", [number], [])
        raise CorruptionError(f"{error}; step {number} was deleted again") from None


def import_checkpoints(self: OpenStore, root: str | os.PathLike[str],
                       steps: Iterable[SupportsIndex] | None = None, *,
                       items: Iterable[str] | None = None,
                       if_exists: IfExists = "error") -> list[int]:
    """Imports several steps below the root of an Orbax CheckpointManager (None: all of them),
    each as `import_checkpoint` does it, and gives their numbers; all are durable when it
    returns. One step is read while another one is written, so two are in memory. An error ends
    it; the steps before are saved then, and `if_exists="skip"` goes on where it ended."""
    self._check()
    self._check_writable()
    if_exists_of(if_exists)
    names = item_names(items)
    asked = None if steps is None else [step_number(step) for step in steps]

    chosen = self._backend.from_leader(
        lambda: _choose(self, checked_path(root), asked, if_exists), "importing")
    last: SaveHandle | None = None
    for number, name in chosen:
        if name is None:  # it is there
            continue
        try:
            handle = self._track(self._backend.import_orbax(
                OrbaxSource(os.path.join(local_path(root), name), number, names), if_exists,
                None if last is None else last._save.handle))
        except Exception:
            if last is not None:
                last.result()  # where this is why
            raise
        if last is not None:
            last.result()
        last = handle
    if last is not None:
        last.result()
    return [number for number, _ in chosen]


def _choose(self: OpenStore, path: str, asked: list[int] | None, if_exists: str
            ) -> list[tuple[int, str | None]]:
    """Steps below a root, with the names of their directories; None for what is skipped."""
    there = orbax_root(path)
    wanted = list(there) if asked is None else asked
    for number in wanted:
        if number not in there:
            raise no_step(path, number, there)
    existing = {summary.step for summary in self._backend.steps()}
    if if_exists == "error" and existing.intersection(wanted):
        raise exists(self.path, min(existing.intersection(wanted)))
    return [(number, None if if_exists == "skip" and number in existing
             else os.path.basename(there[number])) for number in wanted]
