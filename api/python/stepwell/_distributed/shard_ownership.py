# SPDX-License-Identifier: Apache-2.0
"""Which process saves which box of which array, where several processes save together.

Every process computes the same answer from the shapes and shardings that all of them have, without
any communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Box(NamedTuple):
    """A box of an array, and the process that saves it."""

    origin: tuple[int, ...]
    shape: tuple[int, ...]
    owner: int


class Spread(NamedTuple):
    """An array: its shape, the bytes of an element, its sharding."""

    shape: tuple[int, ...]
    item_bytes: int
    sharding: Any


_Held = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # origin, shape, processes


def _process_of(device: Any) -> int:
    return int(device.process_index)


def _held(spread: Spread, process_of: Callable[[Any], int]) -> list[_Held]:
    """The distinct boxes of an array, ascending by origin, each with the processes that have it,
    ascending. Boxes without elements are left out."""
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], set[int]] = {}
    for device, index in spread.sharding.devices_indices_map(spread.shape).items():
        bounds = [part.indices(extent)[:2]
                  for part, extent in zip(index, spread.shape, strict=True)]
        shape = tuple([stop - start for start, stop in bounds])
        if 0 not in shape:
            origin = tuple([start for start, _ in bounds])
            boxes.setdefault((origin, shape), set()).add(process_of(device))
    return [(origin, shape, tuple(sorted(held))) for (origin, shape), held in sorted(boxes.items())]


def owners(arrays: Sequence[Spread],
           process_of: Callable[[Any], int] = _process_of) -> list[list[Box]]:
    """For each array its distinct boxes, ascending by origin, each with the process that saves it:
    the only one that has it, or of those that have it the one with the fewest bytes so far, the
    lowest number among equals. Large boxes are given out first."""
    known: dict[tuple[tuple[int, ...], Any], list[_Held]] = {}
    result: list[list[Box]] = []
    shared: list[tuple[int, int, int, tuple[int, ...]]] = []  # -bytes, array, box, processes
    load: dict[int, int] = {}
    for array in arrays:
        key = (array.shape, array.sharding)
        held = known.get(key)
        if held is None:
            held = known[key] = _held(array, process_of)
        boxes: list[Box] = []
        for origin, shape, processes in held:
            size = array.item_bytes
            for extent in shape:
                size *= extent
            owner = processes[0]
            if len(processes) == 1:
                load[owner] = load.get(owner, 0) + size
            else:
                shared.append((-size, len(result), len(boxes), processes))
            boxes.append(Box(origin, shape, owner))
        result.append(boxes)
    for negative_size, array_number, box_number, processes in sorted(shared):
        owner = min(processes, key=lambda process: (load.get(process, 0), process))
        load[owner] = load.get(owner, 0) - negative_size
        boxes = result[array_number]
        boxes[box_number] = boxes[box_number]._replace(owner=owner)
    return result
