# SPDX-License-Identifier: Apache-2.0
"""Steps as directories that Orbax and TensorStore read as their own, and as files of arrays."""

from __future__ import annotations

import os
from typing import Literal, SupportsIndex

from .._lifetime import OpenStore
from .._pytree.paths import PathLike
from .._runtime.arguments import Progress
from .export_options import ExportReport, ExportRequest, Layout, Leaves, Mode, OnUnsupported, To


def export(self: OpenStore, step: SupportsIndex | None, dest: str | os.PathLike[str], *,
           to: To = "orbax", mode: Mode = "auto", zarr: Literal[2, 3] = 3,
           path: PathLike | None = None, layout: Layout = "v1", leaves: Leaves | None = None,
           step_prefix: str | None = None, step_digits: int = 0, unnamed_default: bool = False,
           on_unsupported: OnUnsupported = "error", file_mode: int | None = None,
           progress: Progress | None = None) -> ExportReport:
    """Makes a step (None: the newest) a directory that Orbax and TensorStore read as their own,
    or a file of arrays.

    With local disks (`open(disks="local")`) all processes call it alike, and `dest` is on a file
    system that all of them see. The export copies, makes no archive, and calls `progress` in each
    process for its own part. With a shared disk any process may call it. Where several call it
    alike, the first one exports and calls `progress`; all return its report or raise its error.

    For Orbax nothing is decoded or loaded: the stored chunks are zarr chunks already. The
    export does not change when the store goes on, and deleting it does the store no harm.
    Ctrl-C stops it, and nothing is left.

    to: "orbax", or "safetensors" or "npz": then `dest` is a file, which must not exist; memory
        is bounded, whatever the step's size. Names in it are paths joined by "/" ("params/w";
        with the item first unless "state" is the only one, and below `path`). Safetensors get
        the step's metadata as strings, "stepwell.step" and "stepwell.metrics"; npz has no
        place for them. Only `path` and `on_unsupported` are for these, too: containers are
        gone, Python's numbers, PRNG keys and element types that the format lacks are
        unsupported but can be widened (to arrays of rank 0, to uint32 data, to the next wider
        type of NumPy's), None and texts can only be skipped.
    dest: with layout "v1" the checkpoint, which must not exist; with "v0" the root of a
        CheckpointManager, made if need be, in which the step gets its directory.
    mode: "link" makes hard links of whole segments: at once, for the same file system; a copy
        of the directory later copies the whole segments. "reflink" shares the step's blocks
        (XFS, btrfs), "copy" copies them. "auto": the first of them that is possible; links only
        for a whole step and where owner and permissions are those of new files.
    zarr: the version of zarr. With 3 readers check every chunk's checksum.
    path: the subtree or leaf that is to be the whole tree.
    leaves: "numpy" for arrays that load on any machine, "jax" for those that were jax.Array to
        be so again, which without a target needs the devices that they were on. None: "jax" if
        JAX is imported and has all these devices, else "numpy". Typed PRNG keys are always keys;
        with "numpy" they load, without a target, onto all devices of the loading process.
    step_prefix, step_digits, unnamed_default: for "v0": `ckpt` and 8 make ckpt_00000007; a
        single item is called "default", as managers without item names expect.
    on_unsupported: what Orbax cannot hold (bytes, complex, integers beyond 64 bits, uint4,
        uint2, float8_e4m3, names that it cannot tell apart) is an "error" that lists all
        of it before anything is written, left out ("skip"), or gets the next wider type
        ("widen"; an error where there is none).
    file_mode: permissions of its files (0o644), for readers under another user; None: the umask's.
        With links, the store's own segments become readable for them.
    progress: called now and then with bytes done and all bytes. What it raises ends the export.

    Raises StepNotFoundError, PathNotFoundError, InvalidArgumentError (on what Orbax cannot
    hold, too), StepExistsError when the destination is there, NoSpaceError, and Error when the
    mode is not possible there.
    """
    self._check()
    target = os.fsencode(os.path.abspath(os.fsdecode(dest))).decode("utf-8", "surrogateescape")
    request = ExportRequest(step, to, target, mode, zarr, path, layout, leaves, step_prefix or "",
                            step_digits, unnamed_default, on_unsupported, file_mode)
    return self._backend.export(request, self._step, self._source, progress)
