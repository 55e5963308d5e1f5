# SPDX-License-Identifier: Apache-2.0
"""Options of managers and checkpointers; those that are accepted and do nothing, with the reason.

Every option has Orbax's name and default. An option that is not listed in ACCEPTED_WITHOUT_EFFECT
acts.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import logging
from collections.abc import Callable, Container
from typing import Any

logger = logging.getLogger("stepwell")


@dataclasses.dataclass
class AsyncOptions:
    """How saves run in the background."""

    timeout_secs: int = 1200
    barrier_sync_fn: Callable[..., Any] | None = None
    post_finalization_callback: Callable[[], Any] | None = None
    create_directories_asynchronously: bool = True


@dataclasses.dataclass
class MultiprocessingOptions:
    """Which processes take part."""

    primary_host: int | None = 0
    active_processes: set[int] | None = None
    barrier_sync_key_prefix: str | None = None


class AtomicityMode(str, enum.Enum):
    """How a save becomes visible at once."""

    AUTO = "auto"
    COMMIT_FILE = "commit_file"
    ATOMIC_RENAME = "atomic_rename"


@dataclasses.dataclass(frozen=True)
class AtomicityOptions:
    """How a save becomes visible at once."""

    mode: AtomicityMode = AtomicityMode.AUTO
    allow_legacy_atomic_rename: bool = False


@dataclasses.dataclass(frozen=True)
class FileOptions:
    """How files are made."""

    path_permission_mode: int | None = None
    skip_sync_file_validations: bool = False


@dataclasses.dataclass
class MemoryLimitOptions:
    """How much memory saves use."""

    max_transfer_concurrent_gb: int | None = None


_ATOMIC = "a step of the store is committed at once, by one record of its log"
_DELETE = "deleting a step writes one record; its space is freed in the background anyway"
_LAYOUT = "the view and exports decide how Orbax sees a step; the store has one format"
_MEMORY = "the store bounds the memory of saves and loads itself"
_PROCESSES = "all processes save together; process 0 saves what is not a jax.Array"

# Options and arguments that are accepted and do nothing, each with the reason.
ACCEPTED_WITHOUT_EFFECT: dict[str, str] = {
    "CheckpointManagerOptions.single_host_load_and_broadcast":
        "the steps come from the store's index, which no process reads step by step",
    "CheckpointManagerOptions.todelete_full_path": "it is for Google Cloud Storage",
    "CheckpointManagerOptions.enable_background_delete": _DELETE,
    "CheckpointManagerOptions.num_deletion_threads": _DELETE,
    "CheckpointManagerOptions.file_options":
        "the store sets the permissions of its files; see FileOptions",
    "CheckpointManagerOptions.atomicity_options": _ATOMIC,
    "CheckpointManagerOptions.temporary_path_class": _ATOMIC,
    "CheckpointManagerOptions.enable_per_process_directory_creation": _PROCESSES,
    "CheckpointManager(logger)": "the store's events go to Python's logger `stepwell`",
    "AsyncOptions.barrier_sync_fn": "processes agree through jax.distributed",
    "AsyncOptions.create_directories_asynchronously": "a save makes no directory",
    "MultiprocessingOptions.primary_host": _PROCESSES,
    "MultiprocessingOptions.active_processes": _PROCESSES,
    "MultiprocessingOptions.barrier_sync_key_prefix": "each store has its own keys",
    "AtomicityOptions.mode": _ATOMIC,
    "AtomicityOptions.allow_legacy_atomic_rename": _ATOMIC,
    "FileOptions.path_permission_mode":
        "the store is the owner's alone; `chmod -R g+rX` lets a group read it",
    "FileOptions.skip_sync_file_validations": "a save looks at no file before it starts",
    "MemoryLimitOptions.max_transfer_concurrent_gb": _MEMORY,
    "SaveArgs.aggregate": "deprecated in Orbax, and ignored there as well",
    "SaveArgs.chunk_byte_size": "the store's chunks are about 1 MiB; see stepwell.ChunkShape",
    "SaveArgs.shard_axes": "chunks follow the shards that an array has",
    "PyTreeSave.ocdbt_target_data_file_size": _LAYOUT,
    "StandardRestore.support_layout": "arrays get the layout that JAX gives them",
    "construct_restore_args(support_layout)": "arrays get the layout that JAX gives them",
    "StandardCheckpointHandler(save_concurrent_gb)": _MEMORY,
    "StandardCheckpointHandler(restore_concurrent_gb)": _MEMORY,
    "StandardCheckpointHandler(pytree_metadata_options)": _LAYOUT,
    "StandardCheckpointHandler(use_ocdbt)": _LAYOUT,
    "PyTreeCheckpointHandler(aggregate_filename)": _LAYOUT,
    "PyTreeCheckpointHandler(save_concurrent_gb)": _MEMORY,
    "PyTreeCheckpointHandler(restore_concurrent_gb)": _MEMORY,
    "PyTreeCheckpointHandler(save_device_host_concurrent_gb)": _MEMORY,
    "PyTreeCheckpointHandler(memory_limit_options)": _MEMORY,
    "PyTreeCheckpointHandler(use_ocdbt)": _LAYOUT,
    "PyTreeCheckpointHandler(use_zarr3)": _LAYOUT,
    "PyTreeCheckpointHandler(use_compression)": _LAYOUT,
    "PyTreeCheckpointHandler(type_handler_registry)": "the store has its own types of leaves",
    "PyTreeCheckpointHandler(handler_impl)": "it is Orbax's own implementation",
    "PyTreeCheckpointHandler(pytree_metadata_options)": _LAYOUT,
    "PyTreeCheckpointHandler(array_metadata_validator)": "every chunk has a checksum instead",
    "PyTreeCheckpointHandler(enable_pinned_host_transfer)": _MEMORY,
    "PyTreeCheckpointHandler(is_prioritized_key_fn)":
        "all arrays are copied before save returns",
    "handlers(multiprocessing_options)": _PROCESSES,
    "ArrayCheckpointHandler(checkpoint_name)": _LAYOUT,
    "Checkpointer(checkpoint_metadata_store)": "the store keeps the metadata",
    "Checkpointer(temporary_path_class)": _ATOMIC,
    "Checkpointer.save(save_context)": "it carries times for Orbax's own statistics",
    "wait_for_new_checkpoint(snapshot_dir)":
        "a step that is being looked at is pinned in the view instead of copied",
    "wait_for_new_checkpoint(set_immutable)": "nothing is copied",
    "wait_for_new_checkpoint(ignore_snapshot_errors)": "nothing is copied",
}


@dataclasses.dataclass
class CheckpointManagerOptions:
    """Options of a `CheckpointManager`: when to save, what to keep, how steps are named."""

    save_interval_steps: int = 1
    max_to_keep: int | None = None
    keep_time_interval: datetime.timedelta | None = None
    keep_period: int | None = None
    best_fn: Callable[[Any], Any] | None = None
    best_mode: str = "max"
    keep_checkpoints_without_metrics: bool = True
    step_prefix: str | None = None
    step_format_fixed_length: int | None = None
    step_name_format: Any = None
    create: bool = True
    cleanup_tmp_directories: bool = False
    save_on_steps: Container[int] | None = None
    single_host_load_and_broadcast: bool = False
    todelete_subdir: str | None = None
    todelete_full_path: str | None = None
    enable_background_delete: bool = False
    num_deletion_threads: int | None = None
    read_only: bool = False
    enable_async_checkpointing: bool = True
    async_options: AsyncOptions | None = None
    multiprocessing_options: MultiprocessingOptions = dataclasses.field(
        default_factory=MultiprocessingOptions)
    should_save_fn: Callable[[int, int | None], bool] | None = None
    file_options: FileOptions = dataclasses.field(default_factory=FileOptions)
    atomicity_options: AtomicityOptions | None = None
    save_root_metadata: bool = True
    temporary_path_class: Any = None
    save_decision_policy: Any = None
    preservation_policy: Any = None
    prevent_write_metrics: bool = False
    enable_should_save_is_saving_in_progress_check: bool = True
    enable_per_process_directory_creation: bool = False
    lightweight_initialize: bool = False

    def __post_init__(self) -> None:
        broadcast = bool(getattr(self.step_name_format, "single_host_load_and_broadcast", False))
        if self.single_host_load_and_broadcast and self.step_name_format and not broadcast:
            raise ValueError("`single_host_load_and_broadcast=True` requires that "
                             "`step_name_format.single_host_load_and_broadcast` is True")
        if broadcast and not self.single_host_load_and_broadcast:
            raise ValueError("`step_name_format.single_host_load_and_broadcast=True` requires "
                             "`single_host_load_and_broadcast=True`")
        if self.best_mode not in ("min", "max"):
            raise ValueError(f"`best_mode` must be 'min' or 'max'. Got {self.best_mode}.")
        if (self.preservation_policy is None and self.max_to_keep is not None
                and self.max_to_keep < 0):
            raise ValueError("Setting of `max_to_keep` must be None or non-negative.")
        if self.read_only:
            self._set_read_only()
        if self.todelete_subdir is not None and self.todelete_full_path is not None:
            raise ValueError("todelete_subdir and todelete_full_path cannot be set together")
        if (self.enable_per_process_directory_creation
                and self.multiprocessing_options.primary_host is not None):
            raise ValueError("enable_per_process_directory_creation needs primary_host=None")
        steps: Any = self.save_on_steps
        self.save_on_steps = frozenset(steps or ())

    def _set_read_only(self) -> None:
        """Switches off what would write. Logs what was set otherwise."""
        off: dict[str, Any] = {
            "save_interval_steps": 0, "max_to_keep": None, "keep_time_interval": None,
            "keep_period": None, "create": False, "cleanup_tmp_directories": False,
            "save_on_steps": None, "todelete_subdir": None, "todelete_full_path": None,
            "should_save_fn": None}
        for name, value in off.items():
            if getattr(self, name) != value:
                if name not in ("save_interval_steps", "create"):  # their defaults differ
                    logger.warning("CheckpointManagerOptions.read_only=True, setting %s=%s",
                                   name, value)
                setattr(self, name, value)
