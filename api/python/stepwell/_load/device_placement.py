# SPDX-License-Identifier: Apache-2.0
"""Stored leaves to arrays on devices.

Of a leaf that is wanted sharded, each distinct box that devices of this process hold is read into
memory of its own, once, and put on all of them: a replicated array is read once, and no array is
ever whole on the host that is not whole on a device. The boxes of many leaves are read in one plan,
so that each chunk is read and decoded once however many boxes meet it. The memory of a box comes
from the NUMA node of the device that it is for.

Where data is copied on its way (to other devices than the CPU, or into another dtype), leaves are
read in batches of about `BATCH_BYTES`, one ahead in a thread while the one before is put on its
devices: three batches, or leaves larger than that, are the most host memory in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _stepwell
from .._pytree.records import ARRAY
from .._pytree.sharding import transfers_allowed
from .._runtime.arguments import Progress
from .._runtime.gc_pause import paused
from .._stepwell import LoadStats, Record, Wanted
from ..errors import Mismatch, MismatchError
from .casts import WRAPS, Casting, does_not_fit, first_lost
from .source import ANY, Source, in_batches

Box = tuple[tuple[int, int], ...]  # (start, stop) of each axis
Boxes = dict[Box, np.ndarray[Any, Any]]  # of an array, with what they hold

BATCH_BYTES = 256 << 20
REPORT_BYTES = 32 << 20  # of a batch where progress is reported
_ALIGNMENT = 64  # bytes; with it JAX's CPU backend takes memory as it is
_BUS_ID_BYTES = 32


class Target(NamedTuple):
    """The jax array that a leaf becomes."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any  # None: where JAX puts it, uncommitted
    weak_type: bool = False
    prng_impl: str = ""  # typed keys: what is read is their data, which has axes behind `shape`


class Slot(NamedTuple):
    """A leaf to read, and what it becomes: `convert` makes it of the raw array (of each box of it)
    or of the bytes of a value; with `target` that is put on devices."""

    number: int
    convert: Callable[[Any], Any]
    target: Target | None = None


def same(raw: Any) -> Any:
    return raw


def empty_aligned(shape: tuple[int, ...], dtype: Any, numa_node: int) -> np.ndarray[Any, Any]:
    """Memory that JAX need not copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory: np.ndarray[Any, Any]
    if numa_node == ANY:
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % _ALIGNMENT
        memory = memory[begin:begin + size]
    else:
        memory = cast(np.ndarray[Any, Any], _stepwell.memory_near(size, numa_node))
    array: np.ndarray[Any, Any] = memory.view(dtype).reshape(shape)
    return array


def node_of(device: Any) -> int:
    """The NUMA node that a JAX device hangs on: what it gets should wait in that node's memory. Of
    CUDA's GPUs the driver and Linux say it; ANY where it does not matter or is not known."""
    if device.platform not in ("gpu", "cuda"):
        return ANY
    ordinal = device.local_hardware_id
    return ANY if ordinal is None else _node_of_cuda_device(ordinal)


@functools.cache
def _node_of_cuda_device(ordinal: int) -> int:
    """`ordinal`: as the CUDA driver counts them in this process, where JAX has started it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ANY  # GPUs of another maker
    device = ctypes.c_int()
    bus_id = ctypes.create_string_buffer(_BUS_ID_BYTES)
    if (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal)
            or driver.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device)):
        return ANY
    return _stepwell.numa_node_of_pci_device(bus_id.value.decode())


class Cast:
    """A `convert` to another dtype as NumPy's astype does it, into memory that JAX need not copy.
    """

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)

    def __call__(self, raw: np.ndarray[Any, Any], numa_node: int = ANY,
                 origin: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
        """`origin`: of `raw` in the whole array; (): it is the whole."""
        out = empty_aligned(raw.shape, self._dtype, numa_node)
        with np.errstate(all="ignore"):
            np.copyto(out, raw, casting="unsafe")
        return out


class CheckedCast(Cast):
    """A Cast that raises MismatchError for a value that the other dtype does not hold."""

    def __init__(self, dtype: Any, step: int, path: str) -> None:
        super().__init__(dtype)
        self._step = step
        self._path = path

    def __call__(self, raw: np.ndarray[Any, Any], numa_node: int = ANY,
                 origin: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
        out = super().__call__(raw, numa_node)
        self._check(raw, out, origin)
        return out

    def _check(self, raw: np.ndarray[Any, Any], out: np.ndarray[Any, Any],
               origin: tuple[int, ...]) -> None:
        lost = first_lost(raw, out)
        if lost is not None:
            raise does_not_fit(self._step, self._path, raw, lost, origin, out.dtype)


def cast_to(dtype: Any, casting: Casting, step: int, path: str) -> Cast:
    """The Cast that `load(cast=)` asks for."""
    return Cast(dtype) if casting == "wrap" else CheckedCast(dtype, step, path)


class Canonical(CheckedCast):
    """Data of a 64-bit type in the type that JAX has in its place without jax_enable_x64. Floating-
    point numbers are rounded; an integer that does not fit is a MismatchError."""

    def _check(self, raw: np.ndarray[Any, Any], out: np.ndarray[Any, Any],
               origin: tuple[int, ...]) -> None:
        if raw.dtype.kind in "iu" and not np.array_equal(out, raw):
            why = (f"stored {raw.dtype} values do not fit {out.dtype}, which JAX has in its place "
                   "without jax_enable_x64")
            raise MismatchError(f"step {self._step}: 1 leaf does not fit `like`:",
                                [Mismatch(self._path, why, "dtype")], WRAPS)


def box_of(index: Any, shape: tuple[int, ...]) -> Box:
    """A device's index in `addressable_devices_indices_map` as a box."""
    return tuple([(part.start or 0, extent if part.stop is None else part.stop)
                  for part, extent in zip(index, shape, strict=True)])


class _Layout(NamedTuple):
    numa_nodes: Mapping[Box, int]  # of each distinct box: that of the first device that has it
    by_device: Mapping[Any, Box]  # each addressable device's


def _layout(sharding: Any, shape: tuple[int, ...]) -> _Layout:
    indices = sharding.addressable_devices_indices_map(shape)
    by_device = {device: box_of(index, shape) for device, index in indices.items()}
    nodes: dict[Box, int] = {}
    for device, box in by_device.items():
        nodes.setdefault(box, node_of(device))
    return _Layout(nodes, by_device)


class _Layouts:
    """Which boxes a sharding needs here, and where; computed once for each sharding and shape."""

    def __init__(self) -> None:
        self.of = functools.cache(_layout)

    @functools.cached_property
    def default_node(self) -> int:
        """Returns the NUMA node of the device for leaves without a sharding."""
        return node_of(sys.modules["jax"].local_devices()[0])


@transfers_allowed()
def copies_of(array: Any, target: Target) -> Boxes:
    """Copies, in the memory of the host, of the boxes of a jax array that this process holds: each
    once. Of typed keys, of their data. `target`: what the array is."""
    data = sys.modules["jax"].random.key_data(array) if target.prng_impl else array
    copies: Boxes = {}
    for number, shard in enumerate(data.addressable_shards):
        box = box_of(shard.index, tuple(data.shape))
        if box not in copies:
            part = np.asarray(data.addressable_data(number))  # keeps no view in the array itself
            copies[box] = empty_aligned(part.shape, part.dtype, node_of(shard.device))
            np.copyto(copies[box], part)
    return copies


@transfers_allowed()
def place(target: Target, boxes: Boxes) -> Any:
    """The jax array of boxes as `copies_of` gives them, whose memory it may take."""
    if target.sharding is None or _is_on_one_device(target.sharding):
        (whole,) = boxes.values()
        value = sys.modules["jax"].device_put(whole, _for_data(target))
    else:
        here = {box[:len(target.shape)]: part for box, part in boxes.items()}
        value = _sharded(target, here, _Layouts())
    return _typed(value, target)


def _is_on_one_device(sharding: Any) -> bool:
    return len(sharding.device_set) == 1 and sharding.is_fully_addressable


class _Request(NamedTuple):
    """The read for a slot: these boxes, or the whole leaf; and the NUMA node of each."""

    slot: Slot
    boxes: list[Box] | None
    numa_nodes: list[int]
    nbytes: int


@transfers_allowed()
def read_slots(source: Source, slots: list[Slot], progress: Progress | None = None) -> list[Any]:
    """The slots' values, read and placed. `progress` is called after each batch."""
    layouts = _Layouts()
    if progress is None and _are_whole(slots, layouts):
        return _read_whole(source, slots)
    with paused():
        records = source.records
        requests = [_request(records[slot.number], slot, layouts) for slot in slots]
        batches = _batches(requests) if progress is None else _reported(requests)
    total_bytes = sum([request.nbytes for request in requests]) if progress is not None else 0
    done_bytes = 0
    values: list[Any] = []
    total = LoadStats()
    on_the_way: list[Any] = []
    order = iter(batches)
    for raws, stats in source.read_batches([_wanted(batch) for batch in batches]):
        batch = next(order, None)
        total += stats
        if batch is None:  # other processes have more
            continue
        with paused():
            made = _make(batch, raws, layouts)
        del raws
        values += made
        if progress is not None:
            done_bytes += sum([request.nbytes for request in batch])
            progress(done_bytes, total_bytes)
        if on_the_way:
            sys.modules["jax"].block_until_ready(on_the_way)
        on_the_way = [value for value, request in zip(made, batch, strict=True)
                      if request.slot.target is not None]
    source.account(total)
    return values


def _are_whole(slots: list[Slot], layouts: _Layouts) -> bool:
    """Returns true if each leaf is read whole into memory that it then has, of whichever node."""
    targets = {id(slot.target): slot.target for slot in slots}
    return not any([isinstance(slot.convert, Cast) for slot in slots]) and all(
        [target is None or _is_whole(target, layouts) for target in targets.values()])


def _is_whole(target: Target, layouts: _Layouts) -> bool:
    if _is_copied(target):
        return False
    if target.sharding is None:
        return layouts.default_node == ANY
    return _is_on_one_device(target.sharding) and all(
        node_of(device) == ANY for device in target.sharding.device_set)


def _read_whole(source: Source, slots: list[Slot]) -> list[Any]:
    """read_slots of slots that _are_whole: these may be many and small."""
    with paused():
        wanted = _stepwell.whole_leaves([slot.number for slot in slots])
    values: list[Any] = []
    total = LoadStats()
    for raws, stats in source.read_batches([wanted] if wanted else []):
        total += stats  # raws: none where only other processes have more
        values += [raw if slot.convert is same else slot.convert(raw)
                   for raw, slot in zip(raws, slots, strict=bool(raws))]
    with paused():
        targets = [(number, slot.target) for number, slot in enumerate(slots) if slot.target]
        if targets:
            arrays = _put([values[number] for number, _ in targets],
                          [target for _, target in targets])
            for (number, _), array in zip(targets, arrays, strict=True):
                values[number] = array
    source.account(total)
    return values


def _request(record: Record, slot: Slot, layouts: _Layouts) -> _Request:
    target = slot.target
    if target is None or record.kind != ARRAY:
        return _Request(slot, None, [ANY], record.logical_bytes)
    if target.sharding is None:
        return _Request(slot, None, [layouts.default_node], record.logical_bytes)
    if _is_on_one_device(target.sharding):
        (device,) = target.sharding.device_set
        return _Request(slot, None, [node_of(device)], record.logical_bytes)
    nodes = layouts.of(target.sharding, target.shape).numa_nodes
    data_axes = tuple([(0, extent) for extent in record.shape[len(target.shape):]])
    boxes = [(*box, *data_axes) for box in nodes]
    count = sum([math.prod([stop - start for start, stop in box]) for box in boxes])
    return _Request(slot, boxes, list(nodes.values()), count * record.dtype.itemsize)


def _batches(requests: list[_Request]) -> list[list[_Request]]:
    total = sum([request.nbytes for request in requests])
    if total <= BATCH_BYTES or not any(
            [isinstance(request.slot.convert, Cast) or _is_copied(request.slot.target)
             for request in requests]):
        return [requests] if requests else []
    return in_batches(requests, lambda request: request.nbytes, BATCH_BYTES)


def _reported(requests: list[_Request]) -> list[list[_Request]]:
    return in_batches(requests, lambda request: request.nbytes, REPORT_BYTES) if requests else []


def _is_copied(target: Target | None) -> bool:
    """Returns true if the memory that is read is not the memory that the array has in the end."""
    if target is None:
        return False
    if target.sharding is None:
        return bool(sys.modules["jax"].default_backend() != "cpu")
    return any(device.platform != "cpu" for device in target.sharding.device_set)


def _wanted(batch: list[_Request]) -> list[Wanted]:
    wanted: list[Wanted] = []
    for (number, *_), boxes, nodes, _ in batch:
        if boxes is None:
            wanted.append(Wanted(number, numa_node=nodes[0]))
        else:
            wanted += [Wanted(number, [start for start, _ in box], [stop for _, stop in box], node)
                       for box, node in zip(boxes, nodes, strict=True)]
    return wanted


def _make(batch: list[_Request], raws: list[Any], layouts: _Layouts) -> list[Any]:
    """The values of a batch of what was read for it."""
    values: list[Any] = []
    parts = iter(raws)
    whole: list[int] = []  # arrays for one device each, put there all at once
    for number, (slot, boxes, nodes, _) in enumerate(batch):
        target = slot.target
        if boxes is not None:
            assert target is not None
            here = {box[:len(target.shape)]: _converted(slot, next(parts), node, box)
                    for box, node in zip(boxes, nodes, strict=True)}
            values.append(_typed(_sharded(target, here, layouts), target))
            continue
        value = _converted(slot, next(parts), nodes[0])
        if target is not None:
            if target.sharding is None or _is_on_one_device(target.sharding):
                whole.append(number)
            else:  # a Python value
                value = _typed(_sharded(target, {(): value}, layouts), target)
        values.append(value)
    if whole:
        targets = [cast(Target, batch[i].slot.target) for i in whole]
        arrays = _put([values[i] for i in whole], targets)
        for i, array in zip(whole, arrays, strict=True):
            values[i] = array
    return values


def _put(values: list[Any], targets: list[Target]) -> list[Any]:
    """Arrays on one device each. `jax.device_put` takes as long for each of many as for one alone,
    so it puts one of those that are alike, and JAX makes the others as it made that one."""
    groups: dict[Target, list[int]] = {}
    group, last = [], None
    for number, target in enumerate(targets):
        if target is not last:
            group, last = groups.setdefault(target, []), target
        group.append(number)
    arrays: list[Any] = [None] * len(values)
    _put_each([numbers[0] for numbers in groups.values()], values, targets, arrays)
    again = _batched_device_put()
    rest: list[int] = []
    for one, *others in groups.values():
        model = arrays[one]
        # Under a trace device_put returns tracers, which have no sharding.
        if again is None or not others or isinstance(model, sys.modules["jax"].core.Tracer):
            rest += others
            continue
        aval, sharding, committed = model.aval, model.sharding, model.committed
        dtype, shape, devices = model.dtype, model.shape, list(model.devices())
        for number in others:
            value = values[number]
            # JAX makes something else of keys and, without x64, of 64-bit types.
            if value.dtype == dtype and value.shape == shape:
                with contextlib.suppress(TypeError, AttributeError):  # of another JAX
                    arrays[number] = again(aval, sharding, [value], devices, committed)
                    continue
            rest.append(number)
    _put_each(rest, values, targets, arrays)
    return arrays


def _put_each(numbers: list[int], values: list[Any], targets: list[Target], arrays: list[Any]
              ) -> None:
    """Puts these of the values on their devices, into `arrays`."""
    made = sys.modules["jax"].device_put([values[i] for i in numbers],
                                         [_for_data(targets[i]) for i in numbers])
    for number, array in zip(numbers, made, strict=True):
        arrays[number] = _typed(array, targets[number])


@functools.cache
def _batched_device_put() -> Callable[..., Any] | None:
    """What JAX itself makes an array of host memory with, given what it is to be. There is no
    public way to it; None without it."""
    try:
        from jax._src.interpreters.pxla import batched_device_put
    except ImportError:
        return None
    put: Callable[..., Any] = batched_device_put
    return put


def _converted(slot: Slot, raw: Any, numa_node: int, box: Box = ()) -> Any:
    if isinstance(slot.convert, Cast):
        return slot.convert(raw, numa_node, tuple([start for start, _ in box]))
    return slot.convert(raw)


def _for_data(target: Target | None) -> Any:
    """A target's sharding, of one device or None, for what is read: keys' data has more axes."""
    assert target is not None
    if target.sharding is None or not target.prng_impl:
        return target.sharding
    (device,) = target.sharding.device_set
    return _on(device, target)


def _on(device: Any, target: Target) -> Any:
    single = sys.modules["jax"].sharding.SingleDeviceSharding
    return single(device, memory_kind=target.sharding.memory_kind)


def _sharded(target: Target, here: Mapping[Box, Any], layouts: _Layouts) -> Any:
    """An array of the boxes that this process holds of it."""
    jax = sys.modules["jax"]
    if target.prng_impl:
        by_device = layouts.of(target.sharding, target.shape).by_device
        with jax.ensure_compile_time_eval():  # arrays, also while JAX traces the caller
            data = jax.device_put([here[box] for box in by_device.values()],
                                  [_on(device, target) for device in by_device])
            keys = [jax.random.wrap_key_data(part, impl=target.prng_impl) for part in data]
            more = {} if keys else {"dtype": target.dtype}
            return jax.make_array_from_single_device_arrays(target.shape, target.sharding, keys,
                                                            **more)
    if not here:  # all of it is on other processes' devices
        return jax.make_array_from_single_device_arrays(target.shape, target.sharding, [],
                                                        dtype=target.dtype)
    return jax.make_array_from_callback(
        target.shape, target.sharding, lambda index: here[box_of(index, target.shape)])


def _typed(value: Any, target: Target) -> Any:
    """Gives a jax array what it still lacks of its target: being keys, or its weak type."""
    jax = sys.modules["jax"]
    if target.prng_impl and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        keys = jax.random.wrap_key_data(value, impl=target.prng_impl)
        if target.sharding is not None and keys.sharding != target.sharding:
            keys = jax.device_put(keys, target.sharding)
        return keys
    return _weak(value) if target.weak_type and not target.prng_impl else value


def _weak(array: Any) -> Any:
    """`array` with JAX's weak type, so that a step function compiled for `like` is not compiled
    again. There is no public way; without the private one the array stays strongly typed."""
    try:
        from jax._src.lax.lax import _convert_element_type
    except ImportError:
        return array
    return _convert_element_type(array, weak_type=True)
