# SPDX-License-Identifier: Apache-2.0
"""`type_handlers`: arguments of leaves."""

from __future__ import annotations

from .leaf_args import (PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs,
                        SingleReplicaArrayRestoreArgs)

__all__ = ["PLACEHOLDER", "ArrayRestoreArgs", "RestoreArgs", "SaveArgs",
           "SingleReplicaArrayRestoreArgs"]
