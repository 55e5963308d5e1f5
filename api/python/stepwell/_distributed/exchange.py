# SPDX-License-Identifier: Apache-2.0
"""Bytes from every process of a run to every other, by XLA: over whatever connects the devices.

One array of words, indexed (from, to, word), lies on the devices of `from`; the same array with
`to` on the devices is what each process gets, so an identity function with another sharding is the
whole transport. It has a bounded size and is used as often as needed.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._pytree.sharding import transfers_allowed

Array = np.ndarray[Any, Any]

ROUND_BYTES = 64 << 20  # the most that one process gives at once
_LEAST_BYTES = 4096
_WORD_BYTES = 4


class _Outgoing:
    """Arrays one after the other, as bytes, each made when its turn comes."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = deque(arrays)
        self._now = np.empty(0, np.uint8)

    def fill(self, out: Array) -> None:
        while out.size:
            if not self._now.size:
                if not self._arrays:
                    return
                # The elements' memory in order; a view where that is possible.
                array = np.ascontiguousarray(self._arrays.popleft())
                self._now = array.reshape(-1).view(np.uint8)
            count = min(self._now.size, out.size)
            out[:count] = self._now[:count]
            self._now, out = self._now[count:], out[count:]


class _Incoming:
    """The same on the other side: arrays, which may be parts of larger ones, to be filled."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = deque(arrays)
        self._array: Array | None = None
        self._memory = np.empty(0, np.uint8)  # of `_array`, or what becomes it
        self._at = 0

    def take(self, data: Array) -> None:
        """Takes the next arrays. Bytes behind the last array are padding."""
        while data.size and (self._array is not None or self._arrays):
            if self._array is None:
                self._array = self._arrays.popleft()
                self._memory = (self._array.reshape(-1).view(np.uint8)
                                if self._array.flags.c_contiguous
                                else np.empty(self._array.nbytes, np.uint8))
                self._at = 0
            count = min(self._memory.size - self._at, data.size)
            self._memory[self._at:self._at + count] = data[:count]
            self._at, data = self._at + count, data[count:]
            if self._at == self._memory.size:
                if not self._array.flags.c_contiguous:
                    self._array[...] = self._memory.view(self._array.dtype).reshape(
                        self._array.shape)
                self._array = None


class Exchange:
    """The exchange of one run. All processes call `run` in the same order, as they use JAX's
    devices."""

    def __init__(self, index: int, count: int) -> None:
        """`index`: of this process, of `count`."""
        jax = sys.modules["jax"]
        sharding = jax.sharding
        of: dict[int, list[Any]] = {process: [] for process in range(count)}
        for device in jax.devices():
            of[device.process_index].append(device)
        each = min(map(len, of.values()))
        if any(len(devices) != each for devices in of.values()):
            each = 1
        rows = [sorted(of[process], key=lambda device: int(device.id))[:each]
                for process in range(count)]
        mesh = sharding.Mesh(np.array(rows, dtype=object), ("process", "device"),
                             axis_types=(sharding.AxisType.Auto,) * 2)
        spec = sharding.PartitionSpec
        self._index, self._count, self._each = index, count, each
        self._from = sharding.NamedSharding(mesh, spec("process", None, "device"))
        to = sharding.NamedSharding(mesh, spec(None, "process", "device"))
        self._move = jax.jit(lambda words: words, out_shardings=to)
        self._jax = jax
        self._mesh = mesh

    def run(self, send: Sequence[Sequence[Array]], receive: Sequence[Sequence[Array]],
            most: int) -> None:
        """Fills the arrays of `receive`, by process, with those that the processes send here.
        `most`: the most bytes that any process sends to any; the same on all."""
        # The caller may have set a mesh of its own.
        set_mesh = getattr(self._jax, "set_mesh", contextlib.nullcontext)
        with set_mesh(self._mesh):
            self._run(send, receive, most)

    def _run(self, send: Sequence[Sequence[Array]], receive: Sequence[Sequence[Array]], most: int
             ) -> None:
        outgoing = [_Outgoing(arrays) for arrays in send]
        incoming = [_Incoming(arrays) for arrays in receive]
        unit = _WORD_BYTES * self._each
        bound = max(unit, ROUND_BYTES // self._count // unit * unit)
        while most > 0:
            # Few different sizes: each is compiled once.
            size = -(-max(_LEAST_BYTES, 1 << (most - 1).bit_length()) // unit) * unit
            size = min(size, bound)
            self._round(outgoing, incoming, size // _WORD_BYTES)
            most -= size

    @transfers_allowed()
    def _round(self, outgoing: list[_Outgoing], incoming: list[_Incoming], words: int) -> None:
        given = np.zeros((1, self._count, words), np.uint32)
        for process, stream in enumerate(outgoing):
            stream.fill(given[0, process].view(np.uint8))
        shape = (self._count, self._count, words)
        moved = self._move(self._jax.make_array_from_callback(
            shape, self._from, lambda index: given[:, :, index[2]]))
        got = np.empty((self._count, words), np.uint32)
        for shard in moved.addressable_shards:
            got[:, shard.index[2]] = np.asarray(shard.data)[:, 0]
        for process, sink in enumerate(incoming):
            sink.take(got[process].view(np.uint8))
