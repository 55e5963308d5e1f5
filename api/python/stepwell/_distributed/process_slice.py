# SPDX-License-Identifier: Apache-2.0
"""Computes the part of a step that one of many processes writes.

Arrays that are spread over processes are dealt out box by box; every process computes the same
owners, from the shapes and shardings that all of them have. Everything else must be the same on all
processes, and is written by the first: the tree's containers, Python's values, NumPy arrays, and
jax arrays that each process has for itself. One on a mesh of one process alone may be either; that
process writes it, and where several have one, these must be the same.

Processes compare digests of the trees that they save, in words with the checksums of such leaves;
where those differ, process 0 receives the words and describes the difference.
"""

from __future__ import annotations

import functools
import hashlib
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _stepwell
from .._pytree.chunks import Chunks, set_chunk_shapes
from .._pytree.digest import arrays_of
from .._pytree.sharding import Layout, to_numpy, transfers_allowed
from .._pytree.tree import (NODE, SHARDS, VALUE, Flattener, SpreadLeaf, name_in_items,
                            walk_items)
from .._stepwell import ComponentType, ItemRows, Row, ValueType, decode_value
from ..errors import CheckpointNotFoundError, PeerError, UnsupportedLeafError
from .messages import CheckpointVote, Failure


class Part(NamedTuple):
    rows: list[ItemRows]
    # The whole tree and the metadata in words, the same on all processes: "path: what it is", and
    # " = " what it holds where that must be the same, too.
    tree_text: list[str]
    # For arrays on meshes of this process alone: the lines of `tree_text`, and what they hold.
    meshes: list[tuple[int, str]]


def part_of(items: dict[str, Any], process: int, chunks: Chunks | None, metadata: str = "") -> Part:
    """Returns the part that `process` writes. Raises as flatten_items."""
    flats = walk_items(items, spread=True)
    only_state = list(items) == ["state"]
    for name, flat in flats:
        _check(name, flat, only_state)
    set_chunk_shapes(chunks, [ItemRows(name, flat.rows) for name, flat in flats])
    # Only one process can see an array that is on it alone, so no process may count such arrays.
    leaves = [leaf for _, flat in flats for leaf in flat.spread if len(_processes(leaf.array)) > 1]
    dealt = iter(owners([Spread(tuple(leaf.array.shape), leaf.array.dtype.itemsize,
                                leaf.array.sharding) for leaf in leaves]))
    rows: list[ItemRows] = []
    for name, flat in flats:
        elsewhere = set()
        layout: Layout | None
        for leaf in flat.spread:
            alone = len(_processes(leaf.array)) == 1
            layout = None if alone else _layout(leaf, next(dealt), process)
            if layout is None:
                elsewhere.add(leaf.row)
            else:
                flat.complete(leaf, layout)
        own = {leaf.row for leaf in flat.spread} | flat.meshes
        here = [row for number, row in enumerate(flat.rows)
                if number not in elsewhere and (process == 0 or number in own)]
        rows.append(ItemRows(name, here, flat.kind))
    return Part(rows, *_describe_tree(flats, only_state, metadata))


def _describe_tree(flats: list[tuple[str, Flattener]], only_state: bool, metadata: str
              ) -> tuple[list[str], list[tuple[int, str]]]:
    tree_text: list[str] = []
    meshes: list[tuple[int, str]] = []
    for name, flat in flats:
        arrays = {leaf.row: leaf.array for leaf in flat.spread}
        for number, row in enumerate(flat.rows):
            array = arrays.get(number)
            text = f"{name_in_items(name, row.path, only_state) or name}: {_row_text(row, array)}"
            if row.path and (key := row.path[-1])[0] in _NOT_TEXT:  # 1 is not "1"
                text += f" at the {_NOT_TEXT[key[0]]} {str(key[1]).replace(': ', ':')}"
            if number in flat.meshes:
                meshes.append((len(tree_text), _content(row)))
            elif array is not None and len(_processes(array)) == 1:
                meshes.append((len(tree_text), _ELSEWHERE))
            elif array is None and row.tag != NODE:
                text += _HOLDS + _content(row)
            tree_text.append(text)
    if metadata:
        tree_text.append(f"the metadata: JSON{_HOLDS}{zlib.crc32(metadata.encode()):08x}")
    return tree_text, meshes


_HOLDS = " = "
_NOT_TEXT: dict[int, str] = {ComponentType.INT_KEY: "int key", ComponentType.LITERAL: "key"}
_ELSEWHERE = ""  # of an array on a mesh of another process
_SHOWN = (ValueType.INT, ValueType.FLOAT, ValueType.BOOL)


def _content(row: Row) -> str:
    """A number of Python, or the checksum of other leaves."""
    if row.tag == VALUE:
        if row.value_type in _SHOWN and len(row.data) <= 32:
            return repr(decode_value(row.value_type, row.data))
        return f"{zlib.crc32(row.data):08x}"
    with transfers_allowed():
        parts = arrays_of(row) if row.tag == SHARDS else [
            row.data if isinstance(row.data, np.ndarray) else to_numpy(row.data)]
    whole = parts[0] if parts else np.empty(0)
    if row.tag == SHARDS and row.shard_shape is not None:  # however it is laid out
        whole = np.empty(row.shape, parts[0].dtype)
        for origin, part in zip(row.origins, parts, strict=True):
            whole[tuple(slice(at, at + size) for at, size in zip(origin, part.shape,
                                                                 strict=True))] = part
    return f"{zlib.crc32(np.ascontiguousarray(whole).reshape(-1).view(np.uint8).data):08x}"


def _row_text(row: Row, spread: Any) -> str:
    """Describes a leaf or container in the words that must be the same on all processes, without ":
    ". `spread`: the array, if it has parts on several."""
    if row.tag == NODE:
        return f"container {int(row.container)} {row.type_name}".rstrip()
    if row.tag == VALUE:
        return ValueType(row.value_type).name.lower()
    if spread is not None and len(_processes(spread)) > 1:
        return f"{spread.dtype}{list(spread.shape)} {row.sharding}".rstrip().replace(": ", ":")
    array = spread if spread is not None else row.data[0] if row.tag == SHARDS else row.data
    shape = row.shape if row.tag == SHARDS else array.shape
    kind = f"{ValueType(row.value_type).name.lower()} {row.prng_impl}".rstrip()
    return f"{kind} {array.dtype}{list(shape)}{' weak' if row.weak_type else ''}"


def _processes(array: Any) -> set[int]:
    return {device.process_index for device in array.sharding.device_set}


def _check(item: str, flat: Flattener, only_state: bool) -> None:
    for leaf in flat.spread:
        if not leaf.info.is_mesh:
            text = name_in_items(item, flat.rows[leaf.row].path, only_state)
            (process,) = _processes(leaf.array)
            raise UnsupportedLeafError(
                f"cannot save {text or 'the state itself'}: it is on one device of process "
                f"{process}, which cannot know that the others have it, too; give it a "
                "NamedSharding", [text])


def _layout(leaf: SpreadLeaf, boxes: list[Box], process: int) -> Layout | None:
    """The boxes that `process` writes; None: nothing, not even that there is such an array, which
    is the first process's to say."""
    array = leaf.array
    if not boxes:  # no elements
        return Layout((), (), None) if process == 0 else None
    mine = {box.origin for box in boxes if box.owner == process}
    numbers: dict[tuple[int, ...], int] = {}
    for number, shard in enumerate(array.addressable_shards):
        origin = tuple([part.start or 0 for part in shard.index])
        if origin in mine:
            numbers.setdefault(origin, number)
    if not numbers and process != 0:
        return None
    return Layout(tuple(numbers.values()), tuple(numbers),
                  tuple(array.sharding.shard_shape(array.shape)))


# ---- owners -------------------------------------------------------------------------------------


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


def _held(shape: tuple[int, ...], sharding: Any, process_of: Callable[[Any], int]) -> list[_Held]:
    """The distinct boxes of an array, ascending by origin, each with the processes that have it,
    ascending. Boxes without elements are left out."""
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        bounds = [part.indices(extent)[:2] for part, extent in zip(index, shape, strict=True)]
        extents = tuple([stop - start for start, stop in bounds])
        if 0 not in extents:
            origin = tuple([start for start, _ in bounds])
            boxes.setdefault((origin, extents), set()).add(process_of(device))
    return [(origin, extents, tuple(sorted(held)))
            for (origin, extents), held in sorted(boxes.items())]


def owners(arrays: Sequence[Spread],
           process_of: Callable[[Any], int] = _process_of) -> list[list[Box]]:
    """For each array its distinct boxes, ascending by origin, each with the process that saves it:
    the only one that has it, or of those that have it the one with the fewest bytes so far, the
    lowest number among equals. Large boxes are given out first."""
    held = functools.cache(_held)
    result: list[list[Box]] = []
    shared: list[tuple[int, int, int, tuple[int, ...]]] = []  # -bytes, array, box, processes
    load: dict[int, int] = {}
    for array in arrays:
        boxes: list[Box] = []
        for origin, shape, processes in held(array.shape, array.sharding, process_of):
            size = array.item_bytes * math.prod(shape)
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


# ---- fingerprints -------------------------------------------------------------------------------


def digest_of(tree_text: list[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for line in tree_text:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def difference(ours: list[str], theirs: list[str], process: int) -> str:
    """The first leaf that differs, in words. Lines are "path: what"."""
    mine = dict(line.rsplit(": ", 1) for line in ours)
    other = dict(line.rsplit(": ", 1) for line in theirs)
    for path, what in mine.items():
        if path not in other:
            return f"process {process} has no {path} ({what} in process 0)"
        if other[path] != what:
            kind, here, held = what.partition(_HOLDS)
            their_kind, there, their_held = other[path].partition(_HOLDS)
            if kind == their_kind and here and there:
                return _other_values(f"{path} ({kind})", held, 0, their_held, process)
            if kind == their_kind:
                on, off = (0, process) if there else (process, 0)
                return f"{path} ({kind}) is on a mesh of its own in process {on}, not in {off}"
            return f"{path} is {other[path]} in process {process} and {what} in process 0"
    for path, what in other.items():
        if path not in mine:
            return f"process {process} has {path} ({what}), process 0 has not"
    return f"process {process} has its leaves in another order than process 0"


def mesh_difference(step: int, tree_text: list[str], meshes: Sequence[Sequence[Sequence[Any]]]
                    ) -> Failure | None:
    """`meshes`: Part's, by process. The first process that holds something else than one before it,
    and that in words."""
    held: dict[int, tuple[str, int]] = {}
    there = {line for lines in meshes for line, what in lines if what != _ELSEWHERE}
    for process, lines in enumerate(meshes):
        for line, what in lines:
            if what == _ELSEWHERE:
                if line in there:
                    continue
                return Failure(f"step {step}: {tree_text[line]} is on another process's mesh for "
                               "each of them: none of them can save it", processes=[process])
            first, having = held.setdefault(line, (what, process))
            if first != what:
                path, kind = tree_text[line].rsplit(": ", 1)
                text = _other_values(f"{path} ({kind})", first, having, what, process)
                return Failure(f"step {step}: {text}", processes=[process])
    return None


def _other_values(leaf: str, held: str, having: int, other: str, process: int) -> str:
    return (f"{leaf} holds {other} in process {process} and {held} in process {having} (a number, "
            "or a checksum), but is saved once for all of them: give them the same "
            "(jax.experimental.multihost_utils.broadcast_one_to_all), or make one array of what "
            "each has (jax.make_array_from_process_local_data)")


# ---- imports ------------------------------------------------------------------------------------


class ImportShare(NamedTuple):
    """The part of an Orbax checkpoint that a process saves when several import it together. Those
    that see it read it in equal shares (db/import/shares.h); a process on a machine where it is not
    saves a part with nothing in it."""

    step: int
    skip: bool  # no process saves anything: the step exists
    part: _stepwell.ImportShare | None  # None: it does not see the checkpoint
    items: Sequence[str]  # of the step


def vote_of(step: int, plan: _stepwell.ImportPlan | None, path: str) -> CheckpointVote:
    """Makes the vote of a process that sees the checkpoint. `plan`: None where the step is
    skipped."""
    digest = "" if plan is None else hashlib.blake2b(plan.identity(), digest_size=16).hexdigest()
    return CheckpointVote(path, step, digest, [] if plan is None else plan.items())


def share_of(votes: Sequence[CheckpointVote], process: int) -> ImportShare:
    """From what all processes said; the same on all of them, but for their own part."""
    first = votes[0]
    if first.step is None:
        raise CheckpointNotFoundError(
            f"{first.path}: there is no such file or directory where process 0 runs")
    if not first.digest:
        return ImportShare(first.step, True, None, [])
    seeing = [number for number, vote in enumerate(votes) if vote.step is not None]
    for number in seeing:
        vote = votes[number]
        if vote.digest not in ("", first.digest) or vote.step != first.step:
            raise PeerError(
                f"process {number} sees another checkpoint than process 0: {vote.path} (step "
                f"{vote.step}) there, {first.path} (step {first.step}) here; bring the "
                "same one to all machines, or to that of process 0 alone", [number])
    part = (_stepwell.ImportShare(index=seeing.index(process), count=len(seeing))
            if process in seeing else None)
    return ImportShare(first.step, False, part, first.items)
