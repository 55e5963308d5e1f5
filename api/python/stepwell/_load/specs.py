# SPDX-License-Identifier: Apache-2.0
"""Meshes and partition specs: which sharding each leaf of a step gets.

`specs` is a dict of paths or globs to specs, one spec for all, or a tree of specs that is a prefix
of what is loaded.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._pytree.keys import BadKeyError
from .._pytree.records import ARRAY
from .._pytree.sharding import partitions, unreduced_axes
from .._pytree.tree import TRANSPARENT, Opened, open_node, path_text
from .._stepwell import StepTree, ValueType
from .._text import brief, counted, with_article
from ..errors import InvalidArgumentError, Mismatch, MismatchError, PathNotFoundError

# An attribute of an enum takes a quarter of a microsecond, for each leaf.
_JAX, _PRNG_KEY = ValueType.JAX, ValueType.PRNG_KEY


def jax_here() -> Any:
    """JAX, when it is imported already; else None."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and hasattr(jax, "Array") else None


def mesh_text(axes: Mapping[str, int]) -> str:
    """ "data=2, model=4"."""
    return ", ".join([f"{name}={size}" for name, size in axes.items()]) or "no axes"


def to_mesh(mesh: Any) -> Any:
    """A jax.sharding.Mesh of what `load` takes: a Mesh as it is; an AbstractMesh or a mapping of
    axis names to sizes over the first devices of `jax.devices()`, the last axis fastest."""
    jax = sys.modules["jax"]
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    if isinstance(mesh, jax.sharding.AbstractMesh):
        mesh = dict(mesh.shape)
    if not isinstance(mesh, Mapping) or not all(
            isinstance(name, str) and isinstance(size, (int, np.integer)) and size > 0
            for name, size in mesh.items()):
        raise InvalidArgumentError("mesh is a jax.sharding.Mesh, or a dict of axis names to sizes, "
                                   f"not {mesh!r}")
    devices = jax.devices()
    count = math.prod(mesh.values())
    if count > len(devices):
        raise InvalidArgumentError(f"the mesh {mesh_text(mesh)} has {counted(count, 'device')}, "
                                   f"and there are only {len(devices)} here")
    shaped = np.array(devices[:count], dtype=object).reshape(tuple(mesh.values()))
    return jax.sharding.Mesh(shaped, tuple(mesh))


def concrete(sharding: Any) -> Any:
    """A sharding of `like`. One over an AbstractMesh, as jax.eval_shape gives where axes are
    explicit, gets the devices of the mesh that is set; None when no mesh of its shape is."""
    types = sys.modules["jax"].sharding
    if not (isinstance(sharding, types.NamedSharding)
            and isinstance(sharding.mesh, types.AbstractMesh)):
        return sharding
    mesh = types.get_mesh()
    if mesh.shape_tuple != sharding.mesh.shape_tuple:
        return None
    return types.NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def _axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one array axis, major to minor."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def check_spec(spec: Any, mesh: Any) -> str:
    """Why `spec` is none over `mesh`; "" when it is."""
    used: set[str] = set()
    for entry in partitions(spec):
        if not isinstance(entry, (str, tuple, type(None))):
            return f"{spec} has {entry!r}, which says no mesh axis"
        for name in _axes_of(entry):
            if name not in mesh.shape:
                return f"{spec} names mesh axis {name!r}; the mesh has {mesh_text(mesh.shape)}"
            if name in used:
                return f"{spec} names mesh axis {name!r} twice"
            used.add(name)
    return ""


def why_not_split(shape: tuple[int, ...], sharding: Any) -> str:
    """Why an array of this shape cannot be sharded so, in words; "" when it can be."""
    named = sys.modules["jax"].sharding.NamedSharding
    if isinstance(sharding, named):
        spec, mesh = sharding.spec, sharding.mesh
        entries = partitions(spec)
        unreduced = unreduced_axes(sharding)
        if unreduced:
            return f"{spec} is unreduced over {unreduced}: a whole array cannot be loaded as parts"
        if len(entries) > len(shape):
            return f"{spec} is of {counted(len(entries), 'axis')}, and the array has {len(shape)}"
        for axis, entry in enumerate(entries):
            names = _axes_of(entry) if isinstance(entry, (str, tuple)) else ()
            parts = math.prod([mesh.shape[name] for name in names])
            if shape[axis] % parts:
                over = " and ".join([f"{name}={mesh.shape[name]}" for name in names])
                return (f"axis {axis} of {shape[axis]} cannot be split into {parts} equal parts as "
                        f"{spec} over {over} asks")
    try:
        sharding.shard_shape(shape)
    except ValueError as error:  # of shardings of another kind
        return str(error)
    return ""


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, sys.modules["jax"].sharding.PartitionSpec)


class _Assigned:
    """The spec of each leaf, with where it came from."""

    def __init__(self, tree: StepTree, step: int) -> None:
        self.tree = tree
        self.step = step
        self.specs: dict[int, tuple[Any, str]] = {}

    def take(self, leaves: Iterable[int], spec: Any, source: str) -> None:
        for leaf in leaves:
            self.specs.setdefault(leaf, (spec, source))

    def from_paths(self, specs: Mapping[str, Any]) -> None:
        for path, spec in specs.items():
            try:
                selection = self.tree.resolve(path)
            except PathNotFoundError as error:
                raise type(error)(f"specs: {error}") from None
            leaves = (selection.leaves if selection.number is None
                      else self.tree.leaves(selection.number))
            self.take(leaves, spec, path)

    def from_tree(self, specs: Any, number: int, path: tuple[Any, ...]) -> None:
        """A prefix tree; `number`: what is stored there."""
        if _is_spec(specs):
            self.take(self.tree.leaves(number), specs, path_text(path))
            return
        where, opened = self._opened(specs, path)
        if opened.kind == TRANSPARENT:
            for _, child in opened.children:
                self.from_tree(child, self.tree.value_of(number), path)
            return
        if not self.tree.is_node(number) and opened.children:
            raise InvalidArgumentError(
                f"specs: at {where} there is {with_article(type(specs).__name__)}, and stored is "
                f"{self.tree.describe(number)}")
        for component, child in opened.children:
            below = (*path, component)
            found = self.tree.find(number, component)
            if len(found) != 1:
                what = "several things" if found else "nothing"
                raise PathNotFoundError(f"specs: step {self.step} has {what} at "
                                        f"{path_text(below)!r}")
            self.from_tree(child, found[0], below)

    def check_values(self, specs: Any, path: tuple[Any, ...] = ()) -> None:
        """Before any path of theirs is looked up: it may be a glob, with something else for a spec.
        """
        if not _is_spec(specs):
            for component, child in self._opened(specs, path)[1].children:
                self.check_values(child, (*path, component))

    def _opened(self, specs: Any, path: tuple[Any, ...]) -> tuple[str, Opened]:
        """A container of specs, and where it is. InvalidArgumentError if it is none."""
        where = "/".join([str(name) for _, name in path]) or "its top"
        try:
            opened = open_node(specs)
        except BadKeyError as error:
            raise InvalidArgumentError(f"specs: {where} {error}") from None
        if opened is None:
            axes = specs if isinstance(specs, str) else "data"
            raise InvalidArgumentError(
                f"specs: at {where} there is {brief(specs)}; values are PartitionSpecs, as "
                f"jax.sharding.PartitionSpec({axes!r}), None (replicated) or containers of them")
        return where, opened


def assign(tree: StepTree, step: int, top: int, leaves: Iterable[int], mesh: Any,
           specs: Any) -> dict[int, Any]:
    """The sharding over `mesh` of each array among `leaves`; `top` is what `specs` starts at when
    it is a tree. Raises InvalidArgumentError, PathNotFoundError, MismatchError with every leaf."""
    jax = jax_here()
    if jax is None:
        raise InvalidArgumentError("mesh and specs need JAX: import jax first")
    mesh = to_mesh(mesh)
    assigned = _Assigned(tree, step)
    paths = isinstance(specs, Mapping) and all(
        isinstance(path, str) and _is_spec(spec) for path, spec in specs.items())
    if paths:
        assigned.from_paths(specs)
    elif specs is not None:
        assigned.check_values(specs)
        assigned.from_tree(specs, top, ())
    nothing = jax.sharding.PartitionSpec()
    made: dict[Any, Any] = {}
    shardings: dict[int, Any] = {}
    bad: list[Mismatch] = []
    records = tree.records
    for number in leaves:
        record = records[number]
        if record.kind != ARRAY:
            continue
        spec, source = assigned.specs.get(number, (None, ""))
        spec = nothing if spec is None else spec
        if spec not in made:
            why = check_spec(spec, mesh)
            if why:
                from_path = f" (from {source!r} of specs)" if paths else ""
                raise InvalidArgumentError(
                    f"step {step}: {tree.text(number) or 'the leaf itself'}{from_path}: {why}")
            made[spec] = jax.sharding.NamedSharding(mesh, spec)
        why = why_not_split(logical_array(record)[0], made[spec])
        if why:
            bad.append(Mismatch(tree.text(number), f"stored {tree.describe(number)}: {why}"))
        shardings[number] = made[spec]
    if bad:
        noun = "leaf does" if len(bad) == 1 else "leaves do"
        raise MismatchError(f"step {step}: {len(bad)} {noun} not fit mesh and specs:", bad)
    return shardings


def logical_array(record: Any) -> tuple[tuple[int, ...], Any]:
    """A leaf's shape and dtype as JAX has them: typed keys have no axes for their data."""
    if record.value_type != _PRNG_KEY:
        return tuple(record.shape), record.dtype
    jax = sys.modules["jax"]
    abstract = jax.eval_shape(
        lambda data: jax.random.wrap_key_data(data, impl=record.prng_impl),
        jax.ShapeDtypeStruct(record.shape, record.dtype))
    return tuple(abstract.shape), abstract.dtype


def saved_shardings(texts: Iterable[str]) -> dict[str, Any]:
    """Returns those shardings, spelled as Orbax spells them, that this process can use: those over
    a mesh of several devices, where all of these exist here, those on a device of this process, or
    a mesh of it alone, that is not the default one (an array on that one stays uncommitted), and
    those in another memory than the devices' default one, where they have it. Empty unless JAX is
    imported."""
    jax = jax_here()
    if jax is None:
        return {}
    found: dict[str, Any] = {}
    devices: dict[int, Any] | None = None
    for text in texts:
        try:
            saved = json.loads(text)
            kind = saved.get("memory_kind")
            if kind is not None and kind not in [
                    memory.kind for memory in jax.local_devices()[0].addressable_memories()]:
                continue
            if saved["sharding_type"] == "SingleDeviceSharding":
                device = {str(each): each for each in jax.local_devices()}[saved["device_str"]]
                if kind is not None or device != jax.local_devices()[0]:
                    found[text] = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
                continue
            if saved["sharding_type"] != "NamedSharding":
                continue
            if devices is None:
                devices = {device.id: device for device in jax.devices()}
            named = _named(jax, saved, devices)
            if kind is not None or math.prod(saved["shape"]) > 1 or (
                    named.device_set <= set(jax.local_devices()[1:])):
                found[text] = named
        except (KeyError, ValueError, TypeError, RuntimeError):
            continue  # of other devices, or spelled in another way, or no backend: NumPy
    return found


def _named(jax: Any, saved: Any, devices: Mapping[int, Any]) -> Any:
    mesh_ids = np.array(saved["device_mesh"]["mesh"], dtype=object)
    shaped = np.array([devices[device["id"]] for device in mesh_ids.flat], dtype=object)
    types = {str(kind).rsplit(".", 1)[-1]: kind for kind in jax.sharding.AxisType}
    axis_types = tuple([types[str(name).rsplit(".", 1)[-1]]
                        for name in saved.get("axis_types") or ["Auto"] * len(saved["shape"])])
    mesh = jax.sharding.Mesh(shaped.reshape(saved["shape"]), tuple(saved["axis_names"]),
                             axis_types=axis_types)
    spec = jax.sharding.PartitionSpec(*[
        tuple(entry) if isinstance(entry, list) else entry for entry in saved["partition_spec"]])
    return jax.sharding.NamedSharding(mesh, spec, memory_kind=saved.get("memory_kind"))


def restored_sharding(record: Any, saved: Mapping[str, Any]) -> Any:
    """The sharding that a leaf was saved with and comes back on; None: it comes as NumPy."""
    sharding = saved.get(record.sharding)
    if sharding is None or record.kind != ARRAY or record.value_type not in (
            _JAX, _PRNG_KEY):
        return None
    jax = sys.modules["jax"]
    if jax.dtypes.canonicalize_dtype(record.dtype) != record.dtype:
        return None  # 64 bits, in a process whose JAX has no such types
    shape, _ = logical_array(record)
    spec = getattr(sharding, "spec", ())
    if len(spec) > len(shape):  # of key data, which has axes of its own
        if any(entry is not None for entry in sharding.spec[len(shape):]):
            return None
        spec = jax.sharding.PartitionSpec(*sharding.spec[:len(shape)])
        sharding = jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return None if why_not_split(shape, sharding) else sharding
