# SPDX-License-Identifier: Apache-2.0
"""Arrays that look to a save like jax.Arrays on an accelerator, and count the copies that are made
of them: the machines of the tests have none."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


class Meter:
    """What is on the host of the arrays of one test, and what was."""

    def __init__(self) -> None:
        self.order: list[str] = []  # the names of shards whose copies were started
        self.copied: list[str] = []
        self.there_bytes = self.peak_bytes = 0  # copies that are under way or alive
        self.may_copy = threading.Event()  # copies end only while it is set
        self.may_copy.set()
        self.on_copy: Callable[[str], None] = lambda name: None

    def begins(self, name: str, copy: np.ndarray) -> None:
        self.order.append(name)
        self.there_bytes += copy.nbytes
        self.peak_bytes = max(self.peak_bytes, self.there_bytes)
        weakref.finalize(copy, self._ends, copy.nbytes)

    def _ends(self, nbytes: int) -> None:
        self.there_bytes -= nbytes


class Memory:
    """A shard's memory on its device."""

    def __init__(self, name: str, values: np.ndarray, meter: Meter) -> None:
        self.name, self.values, self.meter = name, values, meter
        self.deleted = False


class Sharding:
    """Rows over `count` devices."""

    is_fully_addressable, is_fully_replicated, memory_kind = True, False, None

    def __init__(self, count: int) -> None:
        self.device_set = frozenset(Device(i) for i in range(count))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        count = len(self.device_set)
        return shape if count == 1 else (shape[0] // count, *shape[1:])


class Device:
    platform, process_index = "fake", 0

    def __init__(self, number: int) -> None:
        self.id = number


class DeviceArray(jax.Array):
    """An array on fake accelerators, with the members of jax.Array that the package uses. `delete`
    does what JAX does to a donated array."""

    weak_type = committed = False
    shape = dtype = size = nbytes = ndim = sharding = None  # over those of jax.Array

    def __init__(self, name: str, values: np.ndarray, meter: Meter, devices: int = 1,
                 memory: list[Memory] | None = None) -> None:
        self.shape, self.dtype, self.size = values.shape, values.dtype, values.size
        self.nbytes, self.ndim = values.nbytes, values.ndim
        self.sharding = Sharding(devices)
        names = [name] if devices == 1 else [f"{name}.{i}" for i in range(devices)]
        parts = [values] if devices == 1 else np.split(values, devices)
        self._memory = memory or [Memory(each, part, meter)
                                  for each, part in zip(names, parts, strict=True)]
        self._copy: np.ndarray | None = None
        self._shards: dict[int, DeviceArray] = {}  # JAX keeps them, too

    def is_deleted(self) -> bool:
        return any(part.deleted for part in self._memory)

    def delete(self) -> None:
        for part in self._memory:
            part.deleted = True
            part.values = np.full_like(part.values, -1)  # the memory has a new owner

    def _check(self) -> None:
        if self.is_deleted():
            raise RuntimeError(f"Array has been deleted with shape={self.shape}.")

    @property
    def addressable_shards(self) -> list[Any]:
        rows = self.sharding.shard_shape(self.shape)[0] if len(self._memory) > 1 else 0
        return [types.SimpleNamespace(index=(slice(i * rows, (i + 1) * rows) if rows else slice(
            None), *[slice(None)] * (self.ndim - 1))[:self.ndim]) for i in range(len(self._memory))]

    def addressable_data(self, number: int) -> DeviceArray:
        self._check()
        if number not in self._shards:
            part = self._memory[number]
            self._shards[number] = DeviceArray(part.name, part.values, part.meter, 1, [part])
        return self._shards[number]

    def copy_to_host_async(self) -> None:
        self._check()
        (part,) = self._memory
        if self._copy is None:
            self._copy = part.values.copy()
            part.meter.begins(part.name, self._copy)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.copy_to_host_async()
        assert self._copy is not None
        (part,) = self._memory
        part.meter.may_copy.wait()
        part.meter.on_copy(part.name)
        self._check()
        part.meter.copied.append(part.name)
        return self._copy


def detached(shard: Any) -> Any:
    """For `stepwell._pytree.sharding.detached`, which asks JAX for one."""
    (part,) = shard._memory
    return DeviceArray(part.name, part.values, part.meter, 1, [part])
