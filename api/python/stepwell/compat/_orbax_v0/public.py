# SPDX-License-Identifier: Apache-2.0
"""Everything that `stepwell.compat.orbax` has."""

from __future__ import annotations

from . import (args, checkpoint_managers, checkpoint_utils, checkpointers, handlers,
                        metadata, multihost, options, path, step, test_utils, transform_utils, tree,
                        type_handlers, utils)
from .base import AsyncCheckpointHandler, CheckpointHandler
from .checkpointers import (AbstractCheckpointer, AsyncCheckpointer, Checkpointer,
                                      PyTreeCheckpointer, StandardCheckpointer)
from .handlers import (ArrayCheckpointHandler, CheckpointHandlerRegistry,
                                 CompositeCheckpointHandler, CompositeOptions,
                                 DefaultCheckpointHandlerRegistry, JaxRandomKeyCheckpointHandler,
                                 JsonCheckpointHandler, NumpyRandomKeyCheckpointHandler,
                                 ProtoCheckpointHandler, PyTreeCheckpointHandler,
                                 StandardCheckpointHandler)
from .leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs
from .manager import CheckpointManager, StepAlreadyExistsError
from .options import (ACCEPTED_WITHOUT_EFFECT, AsyncOptions, AtomicityMode,
                                AtomicityOptions, CheckpointManagerOptions, FileOptions,
                                MultiprocessingOptions)
from .transform_utils import (RestoreTransform, Transform, apply_transformations,
                                        merge_trees)

AbstractCheckpointManager = CheckpointManager

__all__ = [
    "ACCEPTED_WITHOUT_EFFECT", "AbstractCheckpointManager", "AbstractCheckpointer",
    "ArrayCheckpointHandler", "ArrayRestoreArgs", "AsyncCheckpointHandler", "AsyncCheckpointer",
    "AsyncOptions", "AtomicityMode", "AtomicityOptions", "CheckpointHandler",
    "CheckpointHandlerRegistry", "CheckpointManager", "CheckpointManagerOptions",
    "Checkpointer", "CompositeCheckpointHandler", "CompositeOptions",
    "DefaultCheckpointHandlerRegistry", "FileOptions", "JaxRandomKeyCheckpointHandler",
    "JsonCheckpointHandler", "MultiprocessingOptions", "NumpyRandomKeyCheckpointHandler",
    "PLACEHOLDER", "ProtoCheckpointHandler", "PyTreeCheckpointHandler", "PyTreeCheckpointer",
    "RestoreArgs", "RestoreTransform", "SaveArgs", "StandardCheckpointHandler",
    "StandardCheckpointer", "StepAlreadyExistsError", "Transform", "apply_transformations",
    "args", "checkpoint_managers", "checkpoint_utils", "checkpointers", "handlers",
    "merge_trees", "metadata", "multihost", "options", "path", "step", "test_utils",
    "transform_utils", "tree", "type_handlers", "utils",
]
