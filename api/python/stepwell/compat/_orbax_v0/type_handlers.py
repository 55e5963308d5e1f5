# SPDX-License-Identifier: Apache-2.0
"""`type_handlers`: arguments of leaves."""

from __future__ import annotations

from typing import Any

from .leaf_args import (PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs,
                        SingleReplicaArrayRestoreArgs)

__all__ = ["PLACEHOLDER", "ArrayRestoreArgs", "RestoreArgs", "SaveArgs",
           "SingleReplicaArrayRestoreArgs"]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"type_handlers.{name} is missing here: leaves are those that Stepwell "
                         "stores. Save other objects as items, with a CheckpointHandler of your "
                         "own, or turn them into arrays before you save")
