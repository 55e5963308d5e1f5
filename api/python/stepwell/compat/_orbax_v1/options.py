# SPDX-License-Identifier: Apache-2.0
"""Options of a Context, with Orbax's names and defaults.

ACCEPTED_WITHOUT_EFFECT lists those that change nothing here, each with the reason.
"""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import enum
import pathlib
from collections.abc import Callable
from typing import Any, Protocol

from . import registration

FROZEN_IDS: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    "stepwell_frozen_option_ids", default=frozenset())

ACCEPTED_WITHOUT_EFFECT: dict[str, str] = {
    "asynchronous.create_directories_asynchronously":
        "a save creates its directories in the background always",
    "pytree.saving.pytree_metadata_options": "the structure is stored whole",
    "array.saving.use_ocdbt": "an Orbax reader finds OCDBT always",
    "array.saving.ocdbt_target_data_file_size": "data lie in segments of the store",
    "array.saving.enable_pinned_host_transfer": "the store chooses how it copies to the host",
    "array.saving.enable_post_merge_validation": "nothing is merged",
    "array.saving.use_replica_parallel": "each shard is saved once, by the process that owns it",
    "array.saving.min_slice_bytes_for_replica_parallel": "as use_replica_parallel",
    "array.saving.max_replicas_for_replica_parallel": "as use_replica_parallel",
    "array.saving.enable_replica_parallel_separate_folder": "as use_replica_parallel",
    "array.saving.enable_write_sharding_file": "the sharding is stored always",
    "array.saving.array_metadata_store": "the metadata of arrays are stored always",
    "array.loading.raise_array_data_missing_error": "missing data raise always",
    "array.loading.use_load_and_broadcast": "each process reads its own shards",
    "array.loading.load_and_broadcast_options": "as use_load_and_broadcast",
    "multiprocessing.primary_host": "the processes of jax.distributed save together",
    "multiprocessing.active_processes": "as primary_host",
    "multiprocessing.barrier_sync_key_prefix": "as primary_host",
    "file.skip_sync_file_validations": "the check is one stat",
    "pathways.checkpointing_impl": "Stepwell has no Pathways backend",
    "memory.read_concurrent_bytes": "a load reads into the arrays that it returns",
    "memory.transfer_concurrent_bytes": "staging bounds it: memory.write_concurrent_bytes",
    "memory.regulator_options": "staging has a fixed bound: memory.write_concurrent_bytes",
    "memory.expected_surge_bytes": "as regulator_options",
    "memory.is_prioritized_key_fn": "leaves are saved in the order of the tree",
    "memory.serialization_status_callback": "leaves are not saved one by one",
    "memory.deepcopy_host_arrays": "host arrays are copied before save returns, always",
    "safetensors.max_over_read_ratio": "files are local",
    "safetensors.read_chunk_bytes": "files are local",
    "atomicity.mode": "a checkpoint appears by a rename, and data are flushed before it",
    "atomicity.allow_legacy_atomic_rename": "as mode",
}


class _Guarded:
    """Refuses changes while a Context that it belongs to is active."""

    def __setattr__(self, name: str, value: Any) -> None:
        if id(self) in FROZEN_IDS.get():
            raise RuntimeError("Cannot mutate options of an active context. "
                               "Configure before entering the `with` block.")
        object.__setattr__(self, name, value)


@dataclasses.dataclass(kw_only=True)
class AsyncOptions(_Guarded):
    """timeout_secs: how long `result()` waits. post_finalization_callback: called, without
    arguments, once a save is durable."""

    timeout_secs: int | None = 1200
    post_finalization_callback: Callable[[], None] | None = None
    create_directories_asynchronously: bool = True


class AtomicityMode(enum.Enum):
    AUTO = "auto"
    COMMIT_FILE = "commit_file"
    ATOMIC_RENAME = "atomic_rename"


@dataclasses.dataclass(kw_only=True)
class AtomicityOptions(_Guarded):
    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False


@dataclasses.dataclass(kw_only=True)
class MultiprocessingOptions(_Guarded):
    primary_host: int | None = 0
    active_processes: set[int] | None = None
    barrier_sync_key_prefix: str | None = None


def default_path(path: Any) -> Any:
    """An epath.Path where etils is imported, as Orbax gives; else a pathlib.Path."""
    import sys

    epath = sys.modules.get("etils.epath")
    return (pathlib.Path if epath is None else epath.Path)(path)


@dataclasses.dataclass(kw_only=True)
class FileOptions(_Guarded):
    """path_permission_mode: of a checkpoint's files and directories. path_class: of the paths that
    results have."""

    path_permission_mode: int | None = None
    path_class: Callable[[Any], Any] = default_path
    skip_sync_file_validations: bool = False


@dataclasses.dataclass(kw_only=True)
class PyTreeOptions(_Guarded):

    @dataclasses.dataclass(kw_only=True)
    class Saving(_Guarded):
        pytree_metadata_options: Any = None

    @dataclasses.dataclass(kw_only=True)
    class Loading(_Guarded):
        """partial_load: leaves that the target lacks are not loaded."""

        partial_load: bool = False

    saving: Saving = dataclasses.field(default_factory=Saving)
    loading: Loading = dataclasses.field(default_factory=Loading)


@dataclasses.dataclass(kw_only=True)
class ArrayOptions(_Guarded):

    @dataclasses.dataclass(kw_only=True)
    class Saving(_Guarded):

        class ScopedStorageOptionsCreator(Protocol):
            def __call__(self, key: Any, value: Any) -> ArrayOptions.Saving.StorageOptions | None:
                ...

        @dataclasses.dataclass(kw_only=True)
        class StorageOptions(_Guarded):
            """dtype: arrays are saved as this. chunk_byte_size: no chunk is larger, within 4 KiB to
            4 MiB. shard_axes: chunks are cut along these axes only."""

            dtype: Any = None
            chunk_byte_size: int | None = None
            shard_axes: tuple[int, ...] | None = None

        storage_options: StorageOptions = dataclasses.field(default_factory=StorageOptions)
        use_ocdbt: bool = True
        use_zarr3: bool = True
        use_compression: bool = True
        ocdbt_target_data_file_size: int | None = None
        enable_pinned_host_transfer: bool | None = None
        enable_post_merge_validation: bool = True
        use_replica_parallel: bool | None = None
        min_slice_bytes_for_replica_parallel: int | None = None
        max_replicas_for_replica_parallel: int | None = None
        enable_replica_parallel_separate_folder: bool = False
        enable_write_sharding_file: bool = True
        array_metadata_store: Any = None
        scoped_storage_options_creator: ScopedStorageOptionsCreator | None = None

    @dataclasses.dataclass(kw_only=True)
    class Loading(_Guarded):

        @dataclasses.dataclass(kw_only=True)
        class LoadAndBroadcastOptions(_Guarded):
            replica_axis_index: int | None = 0
            primary_replica_id: int | None = 0
            broadcast_memory_limit_bytes: int | None = None
            broadcast_memory_scaling_factor: float | None = 0.75

        enable_padding_and_truncation: bool = False
        raise_array_data_missing_error: bool = True
        use_load_and_broadcast: bool = False
        load_and_broadcast_options: LoadAndBroadcastOptions = dataclasses.field(
            default_factory=LoadAndBroadcastOptions)

    saving: Saving = dataclasses.field(default_factory=Saving)
    loading: Loading = dataclasses.field(default_factory=Loading)


@dataclasses.dataclass(kw_only=True)
class CheckpointablesOptions(_Guarded):
    registry: registration.CheckpointableHandlerRegistry = dataclasses.field(
        default_factory=lambda: registration.ReadOnlyCheckpointableHandlerRegistry(
            registration.local_registry()))


@dataclasses.dataclass(kw_only=True)
class PathwaysOptions(_Guarded):
    checkpointing_impl: Any = None


@dataclasses.dataclass(kw_only=True)
class DeletionOptions(_Guarded):

    @dataclasses.dataclass(kw_only=True)
    class GcsDeletionOptions(_Guarded):
        """todelete_full_path: NotImplementedError for local paths, as in Orbax."""

        todelete_full_path: str | None = None

    gcs_deletion_options: GcsDeletionOptions = dataclasses.field(
        default_factory=GcsDeletionOptions)


@dataclasses.dataclass(kw_only=True)
class MemoryOptions(_Guarded):
    """write_concurrent_bytes: the most memory that a save uses."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class RegulatorOptions:
        max_memory_limit_gib: float
        profiler: Any
        target_ratio: float = 0.8
        min_memory_limit_gib: float = 10.0
        kp: float = 0.4
        ki: float = 0.05
        kd: float = 0.1

        def __post_init__(self) -> None:
            if self.profiler is None:
                raise ValueError("RegulatorOptions requires a `profiler`.")

        def __deepcopy__(self, memo: dict[int, Any]) -> MemoryOptions.RegulatorOptions:
            return copy.copy(self)

    write_concurrent_bytes: int | None = None
    read_concurrent_bytes: int | None = None
    transfer_concurrent_bytes: int | None = None
    regulator_options: RegulatorOptions | None = None
    expected_surge_bytes: int | float | None = None
    is_prioritized_key_fn: Callable[..., Any] | None = None
    serialization_status_callback: Any = None
    deepcopy_host_arrays: bool = True


@dataclasses.dataclass(kw_only=True)
class SafetensorsOptions(_Guarded):
    max_over_read_ratio: float | None = None
    read_chunk_bytes: int | None = None


class CheckpointLayout(enum.Enum):
    """ORBAX: checkpoints of Stepwell and of Orbax. SAFETENSORS: .safetensors files, for loading.
    AUTO: what is there."""

    ORBAX = "orbax"
    SAFETENSORS = "safetensors"
    AUTO = "auto"
