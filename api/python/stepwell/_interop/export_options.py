# SPDX-License-Identifier: Apache-2.0
"""Options and reports of exports: what users say, and the engine's numbers for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

from .. import _stepwell
from .._load.source import Source
from .._pytree.paths import PathLike
from .._pytree.tree import Component
from .._runtime.arguments import Progress
from ..errors import InvalidArgumentError

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


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of `Store.export`."""

    step: SupportsIndex | None
    to: str
    dest: str
    mode: str
    zarr: int
    path: PathLike | None
    layout: str
    leaves: str | None
    step_prefix: str
    step_digits: int
    unnamed_default: bool
    on_unsupported: str
    file_mode: int | None


def report(fields: Sequence[Any], leaf_type: Leaves = "numpy") -> ExportReport:
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


def check_file_mode(file_mode: int | None) -> None:
    if file_mode is not None and not 0 < file_mode <= 0o777:
        raise InvalidArgumentError(f"file_mode is like 0o644, not {file_mode!r}")


def leaf_type(number: int) -> Leaves:
    return "jax" if number == _LEAVES["jax"] else "numpy"


def locate(source: Source, path: PathLike | None
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


def _archive_choices(request: ExportRequest) -> tuple[int, int]:
    """The engine's numbers for a file. Raises InvalidArgumentError."""
    if request.to not in _ARCHIVES:
        raise InvalidArgumentError(f"to is 'orbax', 'safetensors' or 'npz', not {request.to!r}")
    for name, default in (("mode", "auto"), ("zarr", 3), ("layout", "v1"), ("leaves", None),
                          ("step_prefix", ""), ("step_digits", 0), ("unnamed_default", False),
                          ("file_mode", None)):
        if getattr(request, name) != default:
            raise InvalidArgumentError(f"{name} is for to='orbax'")
    if request.on_unsupported not in _ON_UNSUPPORTED:
        raise InvalidArgumentError(f"on_unsupported is one of {', '.join(_ON_UNSUPPORTED)}, "
                                   f"not {request.on_unsupported!r}")
    return _ARCHIVES[request.to], _ON_UNSUPPORTED[request.on_unsupported]


def run_export(core: _stepwell.Core, source: Source, request: ExportRequest,
               progress: Progress | None, data_file_bytes: int = 0
               ) -> tuple[Sequence[Any], Leaves]:
    """Exports a step of which `core` has all parts; for `report`."""
    if request.to != "orbax":
        numbers = _archive_choices(request)
        reader, subtree = locate(source, request.path)
        return core.export_archive(reader.step, request.dest, *numbers, subtree, progress), "numpy"
    check_file_mode(request.file_mode)
    numbers_for = choices(request.mode, request.layout, request.leaves, request.on_unsupported)
    reader, subtree = locate(source, request.path)
    chosen = numbers_for(reader)
    fields = core.export(
        reader.step, request.dest, *chosen, request.zarr, subtree, request.step_prefix,
        request.step_digits, request.unnamed_default, data_file_bytes, request.file_mode or 0,
        progress)
    return fields, leaf_type(chosen[2])
