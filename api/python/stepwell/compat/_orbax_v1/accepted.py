# SPDX-License-Identifier: Apache-2.0
"""Options of a Context that are accepted and change nothing here, each with the reason."""

from __future__ import annotations

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
    "atomicity.mode": "a checkpoint appears by a rename, and data are flushed before it",
    "atomicity.allow_legacy_atomic_rename": "as mode",
}
