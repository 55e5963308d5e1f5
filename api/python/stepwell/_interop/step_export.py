# SPDX-License-Identifier: Apache-2.0
"""Steps as directories that Orbax and TensorStore read as their own, and as files of arrays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

from .. import _stepwell
from .._pytree.paths import PathLike
from .._pytree.tree import Component
from .._runtime.arguments import Progress
from .._views import _Source
from ..errors import Error, InvalidArgumentError

if TYPE_CHECKING:
    from .._store import Store

To = Literal["orbax", "safetensors", "npz"]
Mode = Literal["auto", "link", "reflink", "copy"]
Layout = Literal["v1", "v0"]
Leaves = Literal["numpy", "jax"]
OnUnsupported = Literal["error", "skip", "widen"]

# db::ExportMode and so on.
_ARCHIVES: dict[str, int] = {"safetensors": 0, "npz": 1}  # db::ArchiveFormat
_MODES: dict[str, int] = {"auto": 0, "link": 1, "reflink": 2, "copy": 3}
_LAYOUTS: dict[str, int] = {"v1": 0, "v0": 1}
_LEAVES: dict[str, int] = {"numpy": 0, "jax": 1}
_ON_UNSUPPORTED: dict[str, int] = {"error": 0, "skip": 1, "widen": 2}
_MODE_NAMES: dict[int, Literal["link", "reflink", "copy"]] = {1: "link", 2: "reflink", 3: "copy"}


class ExportedLeaf(NamedTuple):
    """A leaf that is not as it was: its path, the item first, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class ExportReport:
    """What `Store.export` made.

    path: the checkpoint. mode: how it came by its bytes.
    leaf_type: what `leaves` was, or None meant: "numpy" or "jax" arrays.
    leaves, chunks: how many of the step are in it.
    step_bytes: stored size of those chunks.
    apparent_bytes: what a copy of the directory would take; with mode "link" whole segments.
    written_bytes: of new files, those that share blocks left out.
    skipped, widened: leaves that `on_unsupported` left out or gave another type.
    as_numpy: with leaves="jax", arrays whose sharding Orbax has no word for; they are NumPy's.
    """

    path: str
    mode: Literal["link", "reflink", "copy"]
    leaf_type: Leaves
    leaves: int
    chunks: int
    step_bytes: int
    apparent_bytes: int
    written_bytes: int
    skipped: tuple[ExportedLeaf, ...]
    widened: tuple[ExportedLeaf, ...]
    as_numpy: tuple[ExportedLeaf, ...]


def report(fields: tuple[Any, ...], leaf_type: Leaves = "numpy") -> ExportReport:
    path, mode, leaves, chunks, step_bytes, apparent, written, *lists = fields
    skipped, widened, as_numpy = (tuple(ExportedLeaf(*leaf) for leaf in each) for each in lists)
    return ExportReport(path, _MODE_NAMES[mode], leaf_type, leaves, chunks, step_bytes, apparent,
                        written, skipped, widened, as_numpy)


def _ids(mesh: Any) -> Iterator[int]:
    if isinstance(mesh, list):
        for part in mesh:
            yield from _ids(part)
    else:
        yield mesh["id"]


def _is_here(sharding: str, names: set[str], ids: set[int]) -> bool:
    parsed = json.loads(sharding)
    if parsed["sharding_type"] == "SingleDeviceSharding":
        return parsed["device_str"] in names
    return set(_ids(parsed["device_mesh"]["mesh"])) <= ids


def default_leaves(reader: _stepwell.Reader) -> Leaves:
    """What loads without a target on this machine: jax.Arrays only where JAX is in use and has
    every device that they were on."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "local_devices"):
        return "numpy"
    devices = jax.local_devices()
    names = {str(device) for device in devices}
    ids = {device.id for device in devices}
    return "jax" if all(_is_here(text, names, ids) for text in reader.shardings()) else "numpy"


def check_whole(store: Store, what: str) -> None:
    """Before anything that needs the files of all parts of a step."""
    if store._apart:
        raise Error(f"{what} needs all parts of a step on one file system; those of {store.path!r} "
                    "lie on disks of several machines. Export the step to a file system that all "
                    "processes see")


def check_file_mode(file_mode: int | None) -> None:
    if file_mode is not None and not 0 < file_mode <= 0o777:
        raise InvalidArgumentError(f"file_mode is like 0o644, not {file_mode!r}")


def leaf_type(number: int) -> Leaves:
    return "jax" if number == _LEAVES["jax"] else "numpy"


def locate(source: _Source, path: PathLike | None
           ) -> tuple[_stepwell.Reader, tuple[str, list[Component]] | None]:
    """The step's reader, and the item and components of the one record that `path` names."""
    if path is None or path in ("", ()):
        return source.reader, None
    part, selection = source.select(path, whole=False)
    if selection.number is None:
        raise InvalidArgumentError(f"path {path!r} is a glob; an export has one subtree")
    (_, item), *components = part.tree.components(selection.number)
    return part.reader, (item, components)


def choices(mode: str, layout: str, leaves: str | None, on_unsupported: str
            ) -> Callable[[_stepwell.Reader], tuple[int, int, int, int]]:
    """The engine's numbers for them, once the step is known. Raises InvalidArgumentError."""
    for name, value, known in (("mode", mode, _MODES), ("layout", layout, _LAYOUTS),
                               ("leaves", leaves or "numpy", _LEAVES),
                               ("on_unsupported", on_unsupported, _ON_UNSUPPORTED)):
        if value not in known:
            raise InvalidArgumentError(f"{name} is one of {', '.join(known)}, not {value!r}")
    return lambda reader: (
        _MODES[mode], _LAYOUTS[layout], _LEAVES[leaves or default_leaves(reader)],
        _ON_UNSUPPORTED[on_unsupported])


def archive_choices(to: str, on_unsupported: str, orbax_options: dict[str, bool]
                    ) -> tuple[int, int]:
    """The engine's numbers for a file; `orbax_options`: which of those that are Orbax's alone were
    given. Raises InvalidArgumentError."""
    if to not in _ARCHIVES:
        raise InvalidArgumentError(f"to is 'orbax', 'safetensors' or 'npz', not {to!r}")
    for name, given in orbax_options.items():
        if given:
            raise InvalidArgumentError(f"{name} is for to='orbax'")
    if on_unsupported not in _ON_UNSUPPORTED:
        raise InvalidArgumentError(f"on_unsupported is one of {', '.join(_ON_UNSUPPORTED)}, "
                                   f"not {on_unsupported!r}")
    return _ARCHIVES[to], _ON_UNSUPPORTED[on_unsupported]


# ---- a method of Store ------------------------------------------------------------------------


def export(
    self: Store,
    step: SupportsIndex | None,
    dest: str | os.PathLike[str],
    *,
    to: To = "orbax",
    mode: Mode = "auto",
    zarr: Literal[2, 3] = 3,
    path: PathLike | None = None,
    layout: Layout = "v1",
    leaves: Leaves | None = None,
    step_prefix: str | None = None,
    step_digits: int = 0,
    unnamed_default: bool = False,
    on_unsupported: OnUnsupported = "error",
    file_mode: int | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Makes a step (None: the newest) a directory that Orbax and TensorStore read as their own,
    or a file of arrays.

    In a store on disks of several machines (`open(disks="local")`) all processes call it alike;
    `dest` is on a file system that all of them see. There are no archives and no links there, and
    each hears of the progress of its own part. In one on a file system that all processes see, any
    of them may call it; where several call it alike, the first makes it, and hears of the progress,
    and all return its report, or raise its error.

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
        with "numpy" they load, without a target, onto all devices of whoever loads them.
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
    target = os.fsencode(os.path.abspath(os.fsdecode(dest))).decode("utf-8", "surrogateescape")
    if self._apart:
        from .local_disks_export import export

        return export(self, step, to, {
            "dest": target, "mode": mode, "zarr": zarr, "path": path, "layout": layout,
            "leaves": leaves, "step_prefix": step_prefix or "", "step_digits": step_digits,
            "unnamed_default": unnamed_default, "on_unsupported": on_unsupported,
            "file_mode": file_mode}, progress)

    def make() -> dict[str, Any]:
        if to != "orbax":
            numbers = archive_choices(to, on_unsupported, {
                "mode": mode != "auto", "zarr": zarr != 3, "layout": layout != "v1",
                "leaves": leaves is not None, "step_prefix": bool(step_prefix),
                "step_digits": step_digits != 0, "unnamed_default": unnamed_default,
                "file_mode": file_mode is not None})
            reader, subtree = locate(source, path)
            return {"report": self._core.export_archive(reader.step, target, *numbers, subtree,
                                                        progress)}
        check_file_mode(file_mode)
        numbers_for = choices(mode, layout, leaves, on_unsupported)
        reader, subtree = locate(source, path)
        chosen = numbers_for(reader)
        fields = self._core.export(
            reader.step, target, *chosen, zarr, subtree, step_prefix or "", step_digits,
            unnamed_default, file_mode=file_mode or 0, progress=progress)
        return {"report": fields, "leaf_type": leaf_type(chosen[2])}

    source = self._source(step)
    if self._group is None:
        made = make()
    else:
        about = (source.step, target, to, mode, zarr, path, layout, leaves, step_prefix,
                 step_digits, unnamed_default, on_unsupported, file_mode)
        made = self._group.once.run(f"exporting {about!r}", make)
    return report(made["report"], made.get("leaf_type", "numpy"))
