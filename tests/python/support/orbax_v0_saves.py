# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the Orbax v0 facade."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stepwell.compat import orbax as ocp

STATE = {"w": jnp.arange(4.0)}


def save(manager: Any, *steps: int, **more: Any) -> list[bool]:
    done = [manager.save(step, args=ocp.args.StandardSave(STATE), **more) for step in steps]
    manager.wait_until_finished()
    return done


def options(**more: Any) -> ocp.CheckpointManagerOptions:
    return ocp.CheckpointManagerOptions(**more)
