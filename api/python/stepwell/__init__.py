# SPDX-License-Identifier: Apache-2.0
"""Stepwell: a checkpoint store for JAX training.

    with stepwell.open("run1", keep=stepwell.policy.LatestN(20)) as store:
        state, start = store.load_or(init_state)
        for step in range(start, 1000):
            state = train_step(state)
            store.save(step, state)

Start with `open`; everything else hangs off the `Store` that it returns.
"""

from . import policy, rename
from ._backend.export_options import ExportedLeaf, ExportReport
from ._changed import Changed, ChangedLeaf
from ._follow import Follower
from ._handle import SaveHandle, SaveStats
from ._history import History
from ._interop.orbax_view import OrbaxView, pin_view
from ._interop.patch import PatchReport
from ._interop.safetensors_view import SafetensorsView
from ._load.handle import LoadHandle
from ._loading import Resumed
from ._pytree.chunks import ChunkShape
from ._pytree.digest import digest
from ._pytree.items import Files, Json
from ._remote.listing import PushedStep, pushed_steps
from ._remote.push_following import PushFollower
from ._remote.pushed import PullReport, PushReport
from ._remote.run_delete import DeletePushedReport, delete_pushed
from ._retention import RetentionReport, StepRetention
from ._runtime.stats import (LatencyStats, LoadStats, ReclaimReport, RecoveryStats, RepairReport,
                             SpaceStats, StageLatencies, StoreStats, VerificationStats,
                             VerifyProblem, VerifyReport, ViewStats)
from ._store import Store, open
from ._views import ArrayView, LeafInfo, LeafStatistics, NodeView, StepView, Tree
from .errors import (AmbiguousPathError, CheckpointNotFoundError, CorruptionError, Error, ForkError,
                     FormatError, InvalidArgumentError, LockedError, Mismatch, MismatchError,
                     NoSpaceError, OutcomeUnknownError, PathNotFoundError, PeerError,
                     PermissionDeniedError, StepExistsError, StepNotFoundError, StepPinnedError,
                     StorageError, StoreNotFoundError, UnsupportedLeafError)

__version__ = "0.1.0"

__all__ = [
    "AmbiguousPathError", "ArrayView", "Changed", "ChangedLeaf", "CheckpointNotFoundError",
    "ChunkShape", "CorruptionError", "DeletePushedReport", "Error", "ExportReport",
    "ExportedLeaf", "Files", "Follower", "ForkError", "FormatError", "History",
    "InvalidArgumentError", "Json", "LatencyStats", "LeafInfo", "LeafStatistics", "LoadHandle",
    "LoadStats", "LockedError", "Mismatch", "MismatchError", "NoSpaceError", "NodeView",
    "OrbaxView", "OutcomeUnknownError", "PatchReport", "PathNotFoundError", "PeerError",
    "PermissionDeniedError", "PullReport", "PushFollower", "PushReport", "PushedStep",
    "ReclaimReport", "RecoveryStats", "RepairReport", "Resumed", "RetentionReport",
    "SafetensorsView", "SaveHandle", "SaveStats", "SpaceStats", "StageLatencies",
    "StepExistsError", "StepNotFoundError", "StepPinnedError", "StepRetention", "StepView",
    "StorageError", "Store", "StoreNotFoundError", "StoreStats", "Tree", "UnsupportedLeafError",
    "VerificationStats", "VerifyProblem", "VerifyReport", "ViewStats", "delete_pushed", "digest",
    "open", "pin_view", "policy", "pushed_steps", "rename",
]
