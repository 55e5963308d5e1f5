# SPDX-License-Identifier: Apache-2.0
"""Options and reports of exports."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeVar

import numpy as np

from .. import _stepwell
from .._load.source import Source
from .._pytree.records import PathLike
from .._renaming import Rename, Rule, rules_of
from .._runtime.arguments import Progress
from .._runtime.stats import named
from .._stepwell import OrbaxOptions
from ..errors import InvalidArgumentError
from .safetensors_file import write_tensors
from .tensors import Request, Tensors, float_dtype, top_of

To = Literal["orbax", "safetensors", "npz"]
Mode = Literal["auto", "link", "reflink", "copy"]
Layout = Literal["v1", "v0"]
Leaves = Literal["numpy", "jax"]
OnUnsupported = Literal["error", "skip", "widen"]
E = TypeVar("E", bound=Enum)

_LEAVES = ("skipped", "widened", "as_numpy", "as_text")  # fields of ExportReport


class ExportedLeaf(NamedTuple):
    """A leaf that is not as it was: its path, the item first, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class ExportReport:
    """Describes a checkpoint that `Store.export` made.

    path: the checkpoint. mode: how it came by its bytes.
    leaf_type: what `leaves` was, or None meant: "numpy" or "jax" arrays.
    leaves, chunks: how many of the step are in it.
    step_bytes: stored size of those chunks.
    apparent_bytes: what a copy of the directory would take; with mode "link" whole segments.
    written_bytes: of new files, those that share blocks left out.
    skipped, widened: leaves that `on_unsupported` left out or gave another type.
    as_numpy: with leaves="jax", arrays whose sharding Orbax has no word for; they are NumPy's.
    as_text: leaves below a dict key that is neither str nor int: Orbax gets the key as text.
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
    as_text: tuple[ExportedLeaf, ...]

    @classmethod
    def of(cls, made: _stepwell.ExportReport, leaf_type: str) -> ExportReport:
        fields: dict[str, Any] = {name: getattr(made, name) for name in cls.__annotations__
                                  if name != "leaf_type"}
        for name in _LEAVES:
            fields[name] = tuple(named(ExportedLeaf, leaf) for leaf in fields[name])
        return cls(**{**fields, "mode": made.mode.name, "leaf_type": leaf_type})

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ExportReport:
        """From `vars` of one, which went through a message to other processes."""
        leaves = {name: tuple(ExportedLeaf(*leaf) for leaf in fields[name]) for name in _LEAVES}
        return cls(**{**fields, **leaves})


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
    rename: Rename | None = None
    dtype: Any = None

    def options(self) -> OrbaxOptions:
        """Without a step: `leaves` of None is "numpy" so far. Raises InvalidArgumentError."""
        if self.file_mode is not None and not 0 < self.file_mode <= 0o777:
            raise InvalidArgumentError(f"file_mode is like 0o644, not {self.file_mode!r}")
        self.check_no_tensors()
        options = orbax_options(self.mode, self.layout, self.leaves or "numpy",
                                self.on_unsupported, self.zarr, self.step_prefix,
                                self.step_digits, self.unnamed_default)
        options.file_mode = self.file_mode or 0
        return options

    def check_no_tensors(self) -> None:
        """For what is exported with the stored names and types."""
        for name in ("rename", "dtype"):
            if getattr(self, name) is not None:
                raise InvalidArgumentError(f"{name} is for to='safetensors'")

    def options_for(self, reader: _stepwell.Reader) -> OrbaxOptions:
        options = self.options()
        if self.leaves is None:
            options.leaves = _stepwell.ExportLeaves[default_leaves(reader)]
        return options


def _choice(kind: type[E], name: str, value: str) -> E:
    if value not in kind.__members__:
        raise InvalidArgumentError(f"{name} is one of {', '.join(kind.__members__)}, not {value!r}")
    return kind[value]


def orbax_options(mode: str, layout: str, leaves: str, on_unsupported: str, zarr: int,
                  step_prefix: str, step_digits: int, unnamed_default: bool) -> OrbaxOptions:
    options = OrbaxOptions()
    options.mode = _choice(_stepwell.ExportMode, "mode", mode)
    options.layout = _choice(_stepwell.ExportLayout, "layout", layout)
    options.leaves = _choice(_stepwell.ExportLeaves, "leaves", leaves)
    options.on_unsupported = _choice(_stepwell.OnUnsupported, "on_unsupported", on_unsupported)
    options.zarr_format = zarr
    options.step_prefix, options.step_digits = step_prefix, step_digits
    options.unnamed_default = unnamed_default
    return options


def _is_here(sharding: str, names: set[str], ids: set[int]) -> bool:
    parsed = json.loads(sharding)
    if parsed["sharding_type"] == "SingleDeviceSharding":
        return parsed["device_str"] in names
    mesh = np.array(parsed["device_mesh"]["mesh"], dtype=object)
    return {device["id"] for device in mesh.flat} <= ids


def default_leaves(reader: _stepwell.Reader) -> Leaves:
    """Chooses the type for loads without a target on this machine: jax.Arrays only where JAX is in
    use and has every device that they were on."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "local_devices"):
        return "numpy"
    devices = jax.local_devices()
    names = {str(device) for device in devices}
    ids = {device.id for device in devices}
    return "jax" if all(_is_here(text, names, ids) for text in reader.shardings()) else "numpy"


def locate(source: Source, path: PathLike | None) -> tuple[_stepwell.Reader, bytes]:
    """The step's reader, and the key of the one record that `path` names; b"": the whole step."""
    if path is None or path in ("", ()):
        return source.reader, b""
    part, selection = source.select(path, whole=False)
    if selection.number is None:
        raise InvalidArgumentError(f"path {path!r} is a glob; an export has one subtree")
    return part.reader, part.tree.keys()[selection.number]


def _check_archive(request: ExportRequest) -> None:
    if request.to not in _stepwell.ArchiveFormat.__members__:
        raise InvalidArgumentError(f"to is 'orbax', 'safetensors' or 'npz', not {request.to!r}")
    for name, default in (("mode", "auto"), ("zarr", 3), ("layout", "v1"), ("leaves", None),
                          ("step_prefix", ""), ("step_digits", 0), ("unnamed_default", False),
                          ("file_mode", None)):
        if getattr(request, name) != default:
            raise InvalidArgumentError(f"{name} is for to='orbax'")


def archive_options(to: str, on_unsupported: str, key: bytes) -> _stepwell.ArchiveOptions:
    archive = _stepwell.ArchiveOptions()
    archive.format = _stepwell.ArchiveFormat[to]
    archive.on_unsupported = _choice(_stepwell.OnUnsupported, "on_unsupported", on_unsupported)
    archive.subtree_key = key
    return archive


def tensors_of(source: Source, path: PathLike | None, rules: list[Rule], dtype: Any,
               on_unsupported: str) -> Tensors:
    """What a safetensors file of a step, or of the subtree at `path`, has."""
    _, key = locate(source, path)
    request = Request(archive_options("safetensors", on_unsupported, key), rules,
                      float_dtype(dtype))
    return Tensors(source, top_of(source, key), request)


def _export_archive(core: _stepwell.Core, source: Source, request: ExportRequest,
                    progress: Progress | None) -> ExportReport:
    _check_archive(request)
    if request.rename is None and request.dtype is None:
        reader, key = locate(source, request.path)
        archive = archive_options(request.to, request.on_unsupported, key)
        return ExportReport.of(
            core.export_archive(reader.step, request.dest, archive, progress), "numpy")
    if request.to != "safetensors":
        request.check_no_tensors()
    tensors = tensors_of(source, request.path, rules_of(request.rename), request.dtype,
                         request.on_unsupported)
    size = write_tensors(request.dest, os.fsdecode(core.path), tensors, replace=False,
                         progress=progress)
    source.account(tensors.stats)
    report = ExportReport.of(tensors.report, "numpy")
    return replace(report, path=request.dest, mode="copy", leaves=len(tensors.by_name),
                   apparent_bytes=size, written_bytes=size)


def run_export(core: _stepwell.Core, source: Source, request: ExportRequest,
               progress: Progress | None, data_file_bytes: int = 0) -> ExportReport:
    """Exports a step of which `core` has all parts."""
    if request.to != "orbax":
        return _export_archive(core, source, request, progress)
    request.options()  # what is wrong is said before a step is looked at
    reader, key = locate(source, request.path)
    options = request.options_for(reader)
    options.data_file_bytes, options.subtree_key = data_file_bytes, key
    return ExportReport.of(core.export(reader.step, request.dest, options, progress),
                           options.leaves.name)
