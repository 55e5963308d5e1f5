# SPDX-License-Identifier: Apache-2.0
"""`tree`: trees by the names of their leaves."""

from __future__ import annotations

from .tree_names import (deserialize_tree, from_flat_dict, is_empty_node, is_empty_or_leaf,
                         serialize_tree, to_flat_dict, to_shape_dtype_struct,
                         tuple_path_from_keypath)

__all__ = ["deserialize_tree", "from_flat_dict", "is_empty_node", "is_empty_or_leaf",
           "serialize_tree", "to_flat_dict", "to_shape_dtype_struct", "tuple_path_from_keypath"]
