# SPDX-License-Identifier: Apache-2.0
"""Options and arguments that are accepted and do nothing, each with the reason. All others act."""

from __future__ import annotations

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
