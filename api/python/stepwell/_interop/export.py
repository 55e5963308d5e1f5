# SPDX-License-Identifier: Apache-2.0
"""Steps as checkpoints of Orbax, and as files of arrays."""

from __future__ import annotations

import os
from typing import Any, Literal, SupportsIndex

from .._backend.export_options import (ExportReport, ExportRequest, Layout, Leaves, Mode,
                                       OnUnsupported, To)
from .._lifetime import OpenStore
from .._pytree.records import PathLike
from .._renaming import Rename
from .._runtime.arguments import Progress
from .._runtime.files import engine_path, local_path
from .._runtime.progress import progress_of


def export(self: OpenStore, step: SupportsIndex | None, dest: str | os.PathLike[str], *,
           to: To = "orbax", mode: Mode = "auto", zarr: Literal[2, 3] = 3,
           path: PathLike | None = None, layout: Layout = "v1", leaves: Leaves | None = None,
           step_prefix: str | None = None, step_digits: int = 0, unnamed_default: bool = False,
           on_unsupported: OnUnsupported = "error", file_mode: int | None = None,
           rename: Rename | None = None, dtype: Any = None,
           progress: Progress | bool | None = None) -> ExportReport:
    """Exports a step (None: the newest) as an Orbax checkpoint, which Orbax and TensorStore
    read natively, or as one file of arrays.

    Exports to Orbax do not decode or load the arrays: stored chunks are zarr chunks already.
    Later changes to the store do not affect the export, and deleting the export does not affect
    the store. Ctrl-C stops the export and leaves nothing behind.

    With a shared disk, any process may call `export`. If several processes make the same call,
    the first one exports and calls `progress`; every call returns its report or raises its
    error. With local disks (`open(disks="local")`) `export` is collective, and `dest` must be
    on a file system that all processes see. Such an export copies, cannot make an archive, and
    calls `progress` in each process for that process's part.

    to: "orbax"; or "safetensors" or "npz", an archive: one file `dest`. Writing an archive
        takes bounded memory, whatever the size of the step. Names in it are paths joined by
        "/", relative to `path`, such as "params/w"; they begin with the item unless "state" is
        the only item. A safetensors file also has the step's metadata, as the strings
        "stepwell.step" and "stepwell.metrics"; npz has no place for metadata. Of the other
        arguments, archives take only `path` and `on_unsupported`, and "safetensors" `rename`
        and `dtype`. Archives do not store
        containers. Python numbers, PRNG keys and element types that the format lacks are
        unsupported; "widen" stores them as arrays of rank 0, as uint32 data, and in NumPy's
        next wider type. None and strings can only be skipped.
    dest: for layout "v1" and for archives, the checkpoint or file, which must not exist. For
        layout "v0", the root of a CheckpointManager; it is created if it does not exist, and
        the step becomes a directory in it.
    mode: "link" makes hard links to whole segments. It is fast, and needs the same file system;
        if you later copy the checkpoint, you copy the whole segments. "reflink" shares the
        step's blocks (XFS, btrfs). "copy" copies them. "auto" takes the first of these that is
        possible; it links only a whole step, and only if new files would have the store's owner
        and permissions.
    zarr: the zarr version. Readers of zarr 3 check every chunk's checksum.
    path: the subtree or leaf to export as the whole tree.
    leaves: "numpy": every array loads on any machine. "jax": arrays that were a jax.Array load
        as one; without a target, that needs the devices on which they were saved. None: "jax"
        if JAX is imported and has all of these devices, else "numpy". Typed PRNG keys stay
        keys; with "numpy", they load without a target onto all devices of the loading process.
    step_prefix, step_digits, unnamed_default: for "v0": "ckpt" and 8 name the directory
        ckpt_00000007; unnamed_default names a single item "default", as a manager without item
        names expects.
    on_unsupported: what to do with leaves that Orbax cannot hold (bytes, complex, integers
        beyond 64 bits, uint4, uint2, float8_e4m3, names that it cannot tell apart). "error"
        lists all of them before anything is written. "skip" leaves them out. "widen" stores
        them in the next wider type, and is an error if there is none.
    file_mode: the permissions of the files (e.g. 0o644), so that other users can read them;
        None: the umask decides. With links, this makes the store's own segments readable, too.
    rename: other names, and arrays transposed, taken apart and joined, as another library wants
        them: see `stepwell.rename`. Rules begin with the names that the file would have.
    dtype: the type of all floating-point arrays in the file, e.g. "bfloat16"; numbers are
        rounded. None: as they are stored.
    progress: called from time to time with the bytes done and the total. An exception from it
        ends the export. True: a bar of tqdm or rich.

    Raises StepNotFoundError, PathNotFoundError, InvalidArgumentError (also for leaves that
    Orbax cannot hold), StepExistsError if the destination exists, NoSpaceError, and Error if
    the mode is not possible there.
    """
    self._check()
    target = engine_path(local_path(dest))
    request = ExportRequest(step, to, target, mode, zarr, path, layout, leaves,
                            step_prefix or "", step_digits, unnamed_default, on_unsupported,
                            file_mode, rename, dtype)
    return self._backend.export(request, self._step, self._source,
                                progress_of(progress, "export"))
