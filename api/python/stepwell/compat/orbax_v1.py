# SPDX-License-Identifier: Apache-2.0
"""The interface of orbax.checkpoint.v1 over Stepwell.

    from stepwell.compat import orbax_v1 as ocp    # was: from orbax.checkpoint import v1 as ocp

    ocp.save("ckpt", state)
    with ocp.training.Checkpointer("run") as ckptr:
        ckptr.save(step, state)

What real Orbax wrote is loaded, too, and real Orbax loads what this writes. The guide "Moving from
Orbax" lists every difference.
"""

from __future__ import annotations

from ._orbax_v1 import arrays, errors, handlers, multihost, options, partial, path, training, tree
from ._orbax_v1.context import Context
from ._orbax_v1.deletion import delete, delete_async
from ._orbax_v1.free import (AsyncResponse, checkpointables_metadata, is_orbax_checkpoint, load,
                             load_async, load_checkpointables, load_checkpointables_async,
                             load_pytree, load_pytree_async, metadata, pytree_metadata, save,
                             save_async, save_checkpointables, save_checkpointables_async,
                             save_pytree, save_pytree_async)
from ._orbax_v1.handlers import (AbstractCheckpointable, Checkpointable, CheckpointableHandler,
                                 StatefulCheckpointable)
from ._orbax_v1.metadata import CheckpointMetadata, PyTreeMetadata
from ._orbax_v1.options import ACCEPTED_WITHOUT_EFFECT
from ._orbax_v1.trees import PLACEHOLDER

__all__ = [
    "ACCEPTED_WITHOUT_EFFECT", "PLACEHOLDER", "AbstractCheckpointable", "AsyncResponse",
    "CheckpointMetadata", "Checkpointable", "CheckpointableHandler", "Context", "PyTreeMetadata",
    "StatefulCheckpointable", "arrays", "checkpointables_metadata", "delete", "delete_async",
    "errors", "handlers", "is_orbax_checkpoint", "load", "load_async", "load_checkpointables",
    "load_checkpointables_async", "load_pytree", "load_pytree_async", "metadata", "multihost",
    "options", "partial", "path", "pytree_metadata", "save", "save_async", "save_checkpointables",
    "save_checkpointables_async", "save_pytree", "save_pytree_async", "training", "tree",
]
