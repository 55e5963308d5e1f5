# SPDX-License-Identifier: Apache-2.0
"""Options and reports of exports: what users say, and the engine's numbers for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .. import _stepwell
from .._load.source import Source
from .._pytree.paths import PathLike
from .._pytree.tree import Component
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
