# SPDX-License-Identifier: Apache-2.0
"""Shardings of jax arrays: which shards are saved, and how a sharding is written down.

Nothing here imports JAX: a caller has a jax.Array, so JAX is loaded.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


class Layout(NamedTuple):
    """The shards of an array that are saved: each distinct box once, as its first holder has it."""

    numbers: tuple[int, ...]  # for jax.Array.addressable_data
    origins: tuple[tuple[int, ...], ...]  # of their first elements
    shard_shape: tuple[int, ...] | None  # None: the whole array is one shard


class ShardingInfo:
    """The facts about a sharding that a save needs, found once for all arrays that have it."""

    def __init__(self, sharding: Any) -> None:
        devices = sharding.device_set
        self.json = sharding_json(sharding)
        self.unreduced = unreduced_axes(sharding)
        self.cpu = all(device.platform == "cpu" for device in devices)
        self.here = sharding.is_fully_addressable
        self.replicated = sharding.is_fully_replicated
        self.is_mesh = not isinstance(sharding, sys.modules["jax"].sharding.SingleDeviceSharding)
        # Its memory can be viewed, and is what is saved.
        self.direct = self.cpu and self.here and len(devices) == 1 and not self.unreduced
        self._layouts: dict[tuple[int, ...], Layout] = {}

    def layout(self, array: Any) -> Layout:
        shape = array.shape
        known = self._layouts.get(shape)
        if known is None:
            known = self._layouts[shape] = _layout(array)
        return known


def _layout(array: Any) -> Layout:
    shape = tuple(array.shape)
    shard_shape = tuple(array.sharding.shard_shape(shape))
    boxes: dict[tuple[int, ...], int] = {}
    for number, shard in enumerate(array.addressable_shards):
        boxes.setdefault(tuple([part.start or 0 for part in shard.index]), number)
    if shard_shape == shape:
        return Layout((0,), ((0,) * len(shape),), None)
    return Layout(tuple(boxes.values()), tuple(boxes), shard_shape)


@contextlib.contextmanager
def transfers_allowed() -> Iterator[None]:
    """Saves and loads transfer what they are asked to: jax.transfer_guard, which refuses implicit
    transfers, does not concern them."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "transfer_guard"):
        yield
        return
    with jax.transfer_guard("allow"):
        yield


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The values of a single-device array, as memory that is not changed. A view where JAX can give
    one. Goes through a second array object: JAX would keep the view in the first one, and an array
    with a living view is copied when donated, for ever."""
    return np.asarray(array.addressable_data(0))


def detached(array: Any) -> Any:
    """Another jax.Array of the same memory, of one device. JAX keeps a copy to the host as long as
    the object that it was made of, and what `addressable_data` gives as long as the array: a copy
    that is made of that stays until the caller drops the array."""
    return sys.modules["jax"].make_array_from_single_device_arrays(array.shape, array.sharding,
                                                                   [array])


def _device_ids(devices: Any) -> Any:
    if isinstance(devices, list):
        return [_device_ids(device) for device in devices]
    return {"id": devices.id}


def partitions(spec: Any) -> tuple[Any, ...]:
    """The entries of a PartitionSpec. One with `reduced` or `unreduced` axes is not iterated."""
    return tuple(spec.partitions if hasattr(spec, "partitions") else spec)


def unreduced_axes(sharding: Any) -> str:
    """The mesh axes over which an array of this sharding has yet to be summed; "": none."""
    spec = getattr(sharding, "spec", None)
    return ", ".join([repr(name) for name in sorted(getattr(spec, "unreduced", None) or ())])


def sharding_json(sharding: Any) -> str:
    """A sharding as Orbax spells it in its `_sharding` files, with "memory_kind" where it is not
    the devices' default one; "" for kinds that it has no word for."""
    jax = sys.modules["jax"]
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        spelled: dict[str, Any] = {
            "sharding_type": "SingleDeviceSharding", "device_str": str(device)}
    elif isinstance(sharding, jax.sharding.NamedSharding):
        mesh = sharding.mesh
        spelled = {
            "sharding_type": "NamedSharding",
            "shape": list(mesh.devices.shape),
            "axis_names": list(mesh.axis_names),
            "axis_types": [str(axis_type) for axis_type in mesh.axis_types],
            "partition_spec": list(partitions(sharding.spec)),
            "device_mesh": {"mesh": _device_ids(mesh.devices.tolist())},
        }
    else:
        return ""
    kind = sharding.memory_kind
    if kind is not None and kind != next(iter(sharding.device_set)).default_memory().kind:
        spelled["memory_kind"] = kind
    return json.dumps(spelled)
