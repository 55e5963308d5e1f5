# SPDX-License-Identifier: Apache-2.0
"""`utils`: trees by names, steps of a directory, processes."""

from __future__ import annotations

from .multihost import (broadcast_one_to_all, is_primary_host, reached_preemption,
                        sync_global_processes)
from .step import all_temporary_paths as tmp_checkpoints
from .step import (any_checkpoint_step, checkpoint_steps, checkpoint_steps_paths,
                   get_save_directory, step_from_checkpoint_name)
from .step import is_path_finalized as is_checkpoint_finalized
from .step import is_path_temporary as is_tmp_checkpoint
from .tree_names import (deserialize_tree, from_flat_dict, is_empty_node, is_empty_or_leaf,
                         serialize_tree, to_flat_dict, to_shape_dtype_struct,
                         tuple_path_from_keypath)
from .tree_names import key_name as get_key_name

sync_global_devices = sync_global_processes

__all__ = [
    "any_checkpoint_step", "broadcast_one_to_all", "checkpoint_steps", "checkpoint_steps_paths",
    "deserialize_tree", "from_flat_dict", "get_key_name", "get_save_directory",
    "is_checkpoint_finalized", "is_empty_node", "is_empty_or_leaf", "is_primary_host",
    "is_tmp_checkpoint", "reached_preemption", "serialize_tree", "step_from_checkpoint_name",
    "sync_global_devices", "sync_global_processes", "tmp_checkpoints", "to_flat_dict",
    "to_shape_dtype_struct", "tuple_path_from_keypath",
]
