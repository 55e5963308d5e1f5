# SPDX-License-Identifier: Apache-2.0
"""Which steps a manager saves and keeps: the policies of its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orbax.checkpoint import CheckpointManagerOptions, checkpoint_manager
from orbax.checkpoint.checkpoint_manager import CheckpointInfo


def save_policy(options: CheckpointManagerOptions) -> Any:
    """When to save: the policy of the options, or what their older fields mean."""
    # Orbax has no public name for what older fields mean, here and below.
    return options.save_decision_policy or (
        checkpoint_manager._get_default_save_decision_policy(options))


def keep_policy(options: CheckpointManagerOptions) -> Any:
    """Returns the policy of the options, or the one that their older fields mean."""
    if options.preservation_policy is None:
        return checkpoint_manager._get_default_preservation_policy(options)
    if options.keep_time_interval or options.max_to_keep or options.keep_period:
        raise ValueError("`preservation_policy` and `max_to_keep`, `keep_period`, "
                         "`keep_time_interval` are mutually exclusive")
    return options.preservation_policy


def best(infos: Sequence[CheckpointInfo], options: CheckpointManagerOptions
         ) -> CheckpointInfo | None:
    """The best of the steps that have metrics."""
    best_fn: Any = options.best_fn
    ranked = sorted([info for info in infos if info.metrics is not None],
                    key=lambda info: best_fn(info.metrics), reverse=options.best_mode == "min")
    return ranked[-1] if ranked else None
