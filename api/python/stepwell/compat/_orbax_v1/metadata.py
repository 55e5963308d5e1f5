# SPDX-License-Identifier: Apache-2.0
"""What is known of a checkpoint without loading it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pprint
from typing import Any, Generic, TypeVar

import numpy as np

from ..._load.specs import restored_sharding, saved_shardings
from ..._pytree.records import ARRAY, StoredTree
from ..._stepwell import ValueType
from . import trees

M = TypeVar("M")
PyTreeMetadata = Any


@dataclasses.dataclass
class StorageMetadata:
    chunk_shape: tuple[int, ...] | None
    write_shape: tuple[int, ...] | None


@dataclasses.dataclass
class ArrayMetadata:
    """A stored jax.Array. `sharding_metadata` is its sharding as JSON; `sharding` is None where its
    devices are not here."""

    shape: tuple[int, ...] | None
    dtype: Any
    sharding_metadata: str
    storage_metadata: StorageMetadata | None
    _record: Any = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def sharding(self) -> Any:
        described = json.loads(self.sharding_metadata or "{}")
        if described.get("sharding_type") != "SingleDeviceSharding":
            return restored_sharding(self._record, saved_shardings({self.sharding_metadata}))
        jax = trees.import_jax()
        for device in jax.devices() if jax is not None else ():
            if described["device_str"] in (str(device), f"{device.platform}:{device.id}"):
                return jax.sharding.SingleDeviceSharding(device)
        return None


@dataclasses.dataclass
class NumpyMetadata:
    """A stored NumPy array."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    storage_metadata: StorageMetadata | None


_VALUES: dict[int, Any] = {ValueType.NONE: None, ValueType.INT: 0, ValueType.FLOAT: 0.0,
                           ValueType.BOOL: False, ValueType.STR: "string", ValueType.BYTES: b"",
                           ValueType.COMPLEX: 0j}


def tree_metadata(tree: StoredTree, number: int) -> PyTreeMetadata:
    """The tree at `number` with metadata for leaves."""

    def leaf(number: int) -> Any:
        record = tree.records[number]
        if record.kind != ARRAY:
            return _VALUES[record.value_type]
        storage = StorageMetadata(record.chunk_shape, None)
        if record.value_type in (ValueType.JAX, ValueType.PRNG_KEY):
            storage.write_shape = record.shard_shape or record.shape
            return ArrayMetadata(record.shape, record.dtype, record.sharding, storage, record)
        return NumpyMetadata(record.shape, record.dtype, storage)

    return trees.fold(tree, number, leaf)


def _time(nsecs: int | None) -> datetime.datetime | None:
    return None if nsecs is None else datetime.datetime.fromtimestamp(
        nsecs / 1e9, tz=datetime.timezone.utc)


class CheckpointMetadata(Generic[M]):
    """Metadata of a checkpoint: `metadata` describes the tree, or each checkpointable by name."""

    def __init__(self, path: Any, *, metadata: M, init_timestamp_nsecs: int | None = None,
                 commit_timestamp_nsecs: int | None = None, custom_metadata: Any = None) -> None:
        self._path = path
        self._metadata = metadata
        self._init_timestamp_nsecs = init_timestamp_nsecs
        self._commit_timestamp_nsecs = commit_timestamp_nsecs
        self._custom_metadata = custom_metadata

    @property
    def path(self) -> Any:
        return self._path

    @property
    def metadata(self) -> M:
        return self._metadata

    @property
    def init_timestamp_nsecs(self) -> int | None:
        return self._init_timestamp_nsecs

    @property
    def commit_timestamp_nsecs(self) -> int | None:
        return self._commit_timestamp_nsecs

    @property
    def init_timestamp(self) -> datetime.datetime | None:
        return _time(self._init_timestamp_nsecs)

    @property
    def commit_timestamp(self) -> datetime.datetime | None:
        return _time(self._commit_timestamp_nsecs)

    @property
    def custom_metadata(self) -> Any:
        return self._custom_metadata

    def _properties(self) -> dict[str, str]:
        return {"metadata": str(self.metadata),
                "init_timestamp_nsecs": str(self.init_timestamp_nsecs),
                "commit_timestamp_nsecs": str(self.commit_timestamp_nsecs),
                "custom_metadata": str(self.custom_metadata)}

    def __repr__(self) -> str:
        return f"CheckpointMetadata({pprint.pformat(self._properties())})"


class StepMetadata(CheckpointMetadata[M]):
    """Metadata of a step of a Checkpointer: training.CheckpointMetadata."""

    def __init__(self, step: int, path: Any, *, metadata: M,
                 init_timestamp_nsecs: int | None = None,
                 commit_timestamp_nsecs: int | None = None, custom_metadata: Any = None,
                 metrics: Any = None) -> None:
        super().__init__(path, metadata=metadata, init_timestamp_nsecs=init_timestamp_nsecs,
                         commit_timestamp_nsecs=commit_timestamp_nsecs,
                         custom_metadata=custom_metadata)
        self._step = step
        self._metrics = metrics

    @property
    def step(self) -> int:
        return self._step

    @property
    def metrics(self) -> Any:
        return self._metrics

    @property
    def time(self) -> datetime.datetime:
        return _time(self.commit_timestamp_nsecs) or datetime.datetime.min

    def _properties(self) -> dict[str, str]:
        return {"step": str(self.step), **super()._properties(), "metrics": str(self.metrics)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RootMetadata:
    """Metadata of a whole sequence of checkpoints."""

    directory: Any
    custom_metadata: Any = None
