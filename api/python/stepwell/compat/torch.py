# SPDX-License-Identifier: Apache-2.0
"""PyTorch Distributed Checkpoint (DCP) over a store.

    import torch.distributed.checkpoint as dcp
    from stepwell.compat.torch import StepwellReader, StepwellWriter

    state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    dcp.save(state, storage_writer=StepwellWriter("run1", 7))
    dcp.load(state, storage_reader=StepwellReader("run1", 7))

What DCP saves is an ordinary step, with the state dict as its state: DCP's key
"model.layers.0.weight" has the path "model/layers.0.weight" if the state dict is
{"model": {"layers.0.weight": tensor}}. DCP loads every step, whichever program saved it: the key of
a leaf is its path joined by dots, the item first unless the step has the item "state" alone.

| torch | in the step |
| --- | --- |
| dense tensor of a dtype of `_NAMES`, on any device | array of that dtype and shape |
| bool, int, float, str, None | the Python value |
| any other object | bytes, as `torch.save` writes it; DCP's planner unpickles it on load |

The step commits in `finish`, which DCP calls when every rank has given its data. A save that fails
or is killed before leaves nothing in the store.

**Several ranks.** A rank reads by itself the chunks that hold what it needs; all ranks must see the
store's files. For a save the ranks send their shards through the process group to the coordinator,
which alone opens the store. Its host memory must hold the state twice. Give `dcp.save` a group over
gloo, `process_group=dist.new_group(backend="gloo")`: one over NCCL sends objects through the GPUs.

**Errors.** DCP raises CheckpointException around an error of a rank, `error.failures[rank][0]`. A
key that the step lacks and a tensor of another shape are errors of DCP's planner, which name the
key; nothing is loaded then. Between dtypes DCP converts as `Tensor.copy_` does.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.distributed.checkpoint import Metadata, StorageReader, StorageWriter
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan, LoadPlanner, SavePlan,
                                                  SavePlanner, WriteItemType)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _store
from .._load.slicing import BATCH_BYTES
from .._load.source import in_batches
from .._pytree.values import decode_value
from .._runtime.arguments import IfExists, step_number
from .._stepwell import LeafKind, LoadStats, Wanted
from ..errors import (InvalidArgumentError, StepExistsError, StoreNotFoundError,
                      UnsupportedLeafError)

StoreOrPath = _store.Store | str | os.PathLike[str]

_NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
          "float16", "float32", "float64", "complex64", "complex128", "bfloat16",
          "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, name))
    for name in _NAMES if hasattr(torch, name)}
_TORCH = {ours: theirs for theirs, ours in _DTYPES.items()}
_BITS = {1: torch.uint8, 2: torch.int16}  # for the dtypes that torch.Tensor.numpy lacks, by size
_PLAIN = (bool, int, float, str, type(None))


class _Shared:
    """What DCP asks of a writer and of a reader alike."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise InvalidArgumentError(f"checkpoint_id={checkpoint_id!r}: {type(self).__name__}"
                                       "(store, step) names the step; leave checkpoint_id out")

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # DCP does not choose these classes by itself


class StepwellWriter(_Shared, StorageWriter):
    """Saves one step: `dcp.save(state, storage_writer=StepwellWriter(store, step))`, and
    `dcp.async_save` alike. `dcp.save` returns when the step is durable.

    store: the path of a store, which each save opens, makes if need be, and closes; or an open
        Store, with its policy of what to keep. Only the coordinator saves to it.
    step, metadata, metrics, if_exists: as in `Store.save`.

    Raises StepExistsError, and InvalidArgumentError for a Store that several processes of
    `jax.distributed` have open together. In the CheckpointException of a save are
    UnsupportedLeafError (of dtypes and layouts that the table lacks), InvalidArgumentError (parts
    of a tensor are missing), and the errors of `stepwell.open` and `Store.save`.
    """

    def __init__(self, store: StoreOrPath, step: int, *, metadata: Mapping[str, Any] | None = None,
                 metrics: Mapping[str, Any] | None = None, if_exists: IfExists = "error") -> None:
        if isinstance(store, _store.Store) and store._backend.process_count > 1:
            raise InvalidArgumentError(f"{store.path!r} is open in several processes of "
                                       "jax.distributed; give StepwellWriter the path of another")
        self._store = store
        self._step = step_number(step)
        self._options: dict[str, Any] = {
            "metadata": metadata, "metrics": metrics, "if_exists": if_exists}
        self._coordinates = True
        self._own: list[WriteResult] = []  # of the coordinator: what it has itself
        with contextlib.suppress(StoreNotFoundError), _opened(store, "r") as opened:
            if if_exists == "error" and self._step in opened:
                raise StepExistsError(f"{opened.path!r} has step {step} already; "
                                      "if_exists='replace' replaces it, 'skip' keeps it")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise InvalidArgumentError("use_collectives=False makes a checkpoint of each rank, "
                                       "and a step has the data of all: leave it True")
        self._coordinates = is_coordinator
        self._own = []

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copies this rank's tensors to the host unless they are there; writes nothing.
        `storage_data` of a result is the array or value, None on the coordinator, which keeps it.
        """
        results = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                size, stored = data.getbuffer().nbytes, _plain(data.getvalue())
            else:
                stored = _to_numpy(item.index.fqn, data)
                size = stored.nbytes
            results.append(WriteResult(item.index, size, stored))
        if self._coordinates:
            self._own = results
            results = [WriteResult(each.index, each.size_in_bytes, None) for each in results]
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Saves the step, and waits until it is durable."""
        own, self._own = self._own, []
        pieces: dict[str, list[WriteResult]] = {}
        sent = [each for rank in results for each in rank if each.storage_data is not None]
        for result in [*own, *sent]:
            pieces.setdefault(result.index.fqn, []).append(result)
        leaves = {key: _whole(key, about, pieces[key])
                  for key, about in metadata.state_dict_metadata.items()}
        paths: dict[str, tuple[str | int, ...]] = {key: (key,) for key in leaves}
        state = unflatten_state_dict(leaves, paths | (metadata.planner_data or {}))
        with _opened(self._store, "a") as store:
            store.save(self._step, state, **self._options).result()


class StepwellReader(_Shared, StorageReader):
    """Loads from one step: `dcp.load(state, storage_reader=StepwellReader(store, step))`. The step
    stays readable while this object lives, also if it is deleted or replaced meanwhile.

    store: the path of a store, which is open for reading while this object lives; or an open Store.
    step: its number; None: the newest.

    Raises StoreNotFoundError, StepNotFoundError, and InvalidArgumentError if two leaves have one
    key. In the CheckpointException of a load may be CorruptionError. Leaves of dtypes that torch
    lacks have no key.
    """

    def __init__(self, store: StoreOrPath, step: int | None = None) -> None:
        self._store = store if isinstance(store, _store.Store) else _store.open(store, mode="r")
        self._source = self._store._source(step)
        self._leaves: dict[str, int] = {}  # the number of the record by DCP's key
        self._paths: dict[str, tuple[str | int, ...]] = {}
        tree = self._source.tree
        item = 1 if tree.only_state else 0  # how many components of a path are left out
        for leaf in tree.leaves(tree.top):
            path = tuple(name for _, name in tree.components(leaf)[item:])
            record = tree.records[leaf]
            key = ".".join(map(str, path))
            if key in self._leaves:
                raise InvalidArgumentError(f"step {self._source.step}: two leaves have the key "
                                           f"{key!r} for torch; load them with Store.load")
            if record.kind == LeafKind.VALUE or record.dtype in _TORCH:
                self._leaves[key] = leaf
                self._paths[key] = path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({key: self._about(leaf) for key, leaf in self._leaves.items()},
                        planner_data=dict(self._paths))

    def _about(self, leaf: int) -> BytesStorageMetadata | TensorStorageMetadata:
        """An array counts as one chunk, so DCP asks for the very boxes that it needs."""
        record = self._source.tree.records[leaf]
        if record.kind == LeafKind.VALUE:
            return BytesStorageMetadata()
        size = torch.Size(record.shape)
        return TensorStorageMetadata(
            TensorProperties(dtype=_TORCH[record.dtype]), size,
            [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        pass

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the boxes of the plan, in batches of about 64 MiB."""
        records = self._source.tree.records
        batches = in_batches(plan.items, lambda item: records[
            self._leaves[item.storage_index.fqn]].dtype.itemsize * math.prod(item.lengths)
            if item.type == LoadItemType.TENSOR else 0, BATCH_BYTES)
        order, total = iter(batches), LoadStats()
        for raws, stats in self._source.read_batches(
                [[self._wanted(item) for item in batch] for batch in batches]):
            total += stats
            for item, raw in zip(next(order, []), raws, strict=True):
                if item.type == LoadItemType.BYTE_IO:
                    record = records[self._leaves[item.storage_index.fqn]]
                    value = decode_value(record.value_type, raw)
                    planner.load_bytes(item, io.BytesIO(
                        value if isinstance(value, bytes) else _saved(value)))
                else:
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(_to_torch(raw))
                    planner.commit_tensor(item, target)
        self._source.account(total)
        return _done(None)

    def _wanted(self, item: Any) -> Wanted:
        leaf = self._leaves[item.storage_index.fqn]
        if item.type == LoadItemType.BYTE_IO:
            return Wanted(leaf, None, None)
        start = list(item.storage_offsets)
        return Wanted(leaf, start, [begin + length for begin, length
                                    in zip(start, item.lengths, strict=True)])


@contextlib.contextmanager
def _opened(store: StoreOrPath, mode: Any) -> Iterator[_store.Store]:
    """Closes at the end what it has opened."""
    if isinstance(store, _store.Store):
        yield store
        return
    with _store.open(store, mode=mode) as opened:
        yield opened


def _done(value: Any) -> Any:
    future: Any = Future()
    future.set_result(value)
    return future


def _whole(key: str, about: Any, pieces: list[WriteResult]) -> Any:
    """What is saved at a key: its value, or its array, put together from the boxes of all ranks."""
    first = pieces[0].storage_data
    if isinstance(about, BytesStorageMetadata) or first.shape == tuple(about.size):
        return first
    count = sum(piece.storage_data.size for piece in pieces)
    if count != math.prod(about.size):
        raise InvalidArgumentError(
            f"cannot save {key}: {count:,} of its {math.prod(about.size):,} elements are in this "
            "save. With no_dist=True a rank saves what it has alone: save with all ranks")
    array = np.empty(tuple(about.size), first.dtype)
    for piece in pieces:
        data = piece.storage_data
        array[tuple(slice(begin, begin + extent) for begin, extent
                    in zip(piece.index.offset, data.shape, strict=True))] = data
    return array


def _to_numpy(key: str, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Of a tensor on the CPU a view."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None or tensor.layout != torch.strided:
        raise UnsupportedLeafError(f"cannot save {key}: it is a tensor of {tensor.dtype} in "
                                   f"{tensor.layout}; convert it to a dense one of a dtype that "
                                   "the docstring of stepwell.compat.torch lists", [key])
    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    if dtype.isbuiltin != 1:  # of ml_dtypes
        return np.asarray(values.view(_BITS[dtype.itemsize]).numpy().view(dtype))
    return np.asarray(values.numpy())


def _to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.isbuiltin != 1:
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(_TORCH[array.dtype])
    return torch.from_numpy(array)


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _plain(data: bytes) -> Any:
    """The Python value that these bytes of `torch.save` stand for if `_saved` gives them back;
    else the bytes."""
    try:
        value = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # of another planner, or with classes that it must not unpickle
        return data
    return value if type(value) in _PLAIN and _saved(value) == data else data
