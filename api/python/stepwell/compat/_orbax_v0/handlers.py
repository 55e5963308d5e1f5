# SPDX-License-Identifier: Apache-2.0
"""`handlers`: how each kind of item is saved and restored."""

from __future__ import annotations

from .args import ArrayRestore as ArrayRestoreArgs
from .args import ArraySave as ArraySaveArgs
from .args import Composite as CompositeArgs
from .args import Composite as CompositeResults
from .args import JaxRandomKeyRestore as JaxRandomKeyRestoreArgs
from .args import JaxRandomKeySave as JaxRandomKeySaveArgs
from .args import JsonRestore as JsonRestoreArgs
from .args import JsonSave as JsonSaveArgs
from .args import NumpyRandomKeyRestore as NumpyRandomKeyRestoreArgs
from .args import NumpyRandomKeySave as NumpyRandomKeySaveArgs
from .args import ProtoRestore as ProtoRestoreArgs
from .args import ProtoSave as ProtoSaveArgs
from .args import PyTreeRestore as PyTreeRestoreArgs
from .args import PyTreeSave as PyTreeSaveArgs
from .args import StandardRestore as StandardRestoreArgs
from .args import StandardSave as StandardSaveArgs
from .base import AsyncCheckpointHandler, CheckpointHandler
from .composite_handler import CompositeCheckpointHandler, CompositeOptions
from .native_handlers import (ArrayCheckpointHandler, JsonCheckpointHandler, ProtoCheckpointHandler,
                              PyTreeCheckpointHandler, StandardCheckpointHandler)
from .random_keys import JaxRandomKeyCheckpointHandler, NumpyRandomKeyCheckpointHandler
from .registry import (CheckpointHandlerRegistry, DefaultCheckpointHandlerRegistry,
                       create_default_handler_registry)

__all__ = [
    "ArrayCheckpointHandler", "ArrayRestoreArgs", "ArraySaveArgs", "AsyncCheckpointHandler",
    "CheckpointHandler", "CheckpointHandlerRegistry", "CompositeArgs", "CompositeCheckpointHandler",
    "CompositeOptions", "CompositeResults", "DefaultCheckpointHandlerRegistry",
    "JaxRandomKeyCheckpointHandler", "JaxRandomKeyRestoreArgs", "JaxRandomKeySaveArgs",
    "JsonCheckpointHandler", "JsonRestoreArgs", "JsonSaveArgs", "NumpyRandomKeyCheckpointHandler",
    "NumpyRandomKeyRestoreArgs", "NumpyRandomKeySaveArgs", "ProtoCheckpointHandler",
    "ProtoRestoreArgs", "ProtoSaveArgs", "PyTreeCheckpointHandler", "PyTreeRestoreArgs",
    "PyTreeSaveArgs", "StandardCheckpointHandler", "StandardRestoreArgs", "StandardSaveArgs",
    "create_default_handler_registry",
]
