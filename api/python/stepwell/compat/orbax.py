# SPDX-License-Identifier: Apache-2.0
"""orbax.checkpoint (v0) over Stepwell: `from stepwell.compat import orbax as ocp`.

Names, arguments, results and exceptions are Orbax's. `ACCEPTED_WITHOUT_EFFECT` lists options that
do nothing here, with reasons; the guide "Moving from Orbax" lists what differs otherwise.
"""

from __future__ import annotations

from ._orbax_v0 import (args, checkpoint_managers, checkpoint_utils, checkpointers, handlers,
                        metadata, multihost, options, path, step, test_utils, transform_utils, tree,
                        type_handlers, utils)
from ._orbax_v0.base import AsyncCheckpointHandler, CheckpointHandler
from ._orbax_v0.checkpointers import (AbstractCheckpointer, AsyncCheckpointer, Checkpointer,
                                      PyTreeCheckpointer, StandardCheckpointer)
from ._orbax_v0.handlers import (ArrayCheckpointHandler, CheckpointHandlerRegistry,
                                 CompositeCheckpointHandler, CompositeOptions,
                                 DefaultCheckpointHandlerRegistry, JaxRandomKeyCheckpointHandler,
                                 JsonCheckpointHandler, NumpyRandomKeyCheckpointHandler,
                                 ProtoCheckpointHandler, PyTreeCheckpointHandler,
                                 StandardCheckpointHandler)
from ._orbax_v0.leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs
from ._orbax_v0.manager import CheckpointManager, StepAlreadyExistsError
from ._orbax_v0.options import (ACCEPTED_WITHOUT_EFFECT, AsyncOptions, AtomicityMode,
                                AtomicityOptions, CheckpointManagerOptions, FileOptions,
                                MultiprocessingOptions)
from ._orbax_v0.transform_utils import (RestoreTransform, Transform, apply_transformations,
                                        merge_trees)

__all__ = [
    "ACCEPTED_WITHOUT_EFFECT", "AbstractCheckpointer", "ArrayCheckpointHandler",
    "ArrayRestoreArgs", "AsyncCheckpointHandler", "AsyncCheckpointer", "AsyncOptions",
    "AtomicityMode", "AtomicityOptions", "CheckpointHandler", "CheckpointHandlerRegistry",
    "CheckpointManager", "CheckpointManagerOptions", "Checkpointer", "CompositeCheckpointHandler",
    "CompositeOptions", "DefaultCheckpointHandlerRegistry", "FileOptions",
    "JaxRandomKeyCheckpointHandler", "JsonCheckpointHandler", "MultiprocessingOptions",
    "NumpyRandomKeyCheckpointHandler", "PLACEHOLDER", "ProtoCheckpointHandler",
    "PyTreeCheckpointHandler", "PyTreeCheckpointer", "RestoreArgs", "RestoreTransform", "SaveArgs",
    "StandardCheckpointHandler", "StandardCheckpointer", "StepAlreadyExistsError", "Transform",
    "apply_transformations", "args", "checkpoint_managers", "checkpoint_utils", "checkpointers",
    "handlers", "merge_trees", "metadata", "multihost", "options", "path", "step", "test_utils",
    "transform_utils", "tree", "type_handlers", "utils",
]
