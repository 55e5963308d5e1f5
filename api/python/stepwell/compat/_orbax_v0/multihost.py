# SPDX-License-Identifier: Apache-2.0
"""`multihost`: what programs ask of Orbax about the processes of a run."""

from __future__ import annotations

from typing import Any

from ..._runtime.preemption import jax_says_so
from .libraries import jax_module, multihost_utils


def process_index() -> int:
    jax = jax_module()

    return int(jax.process_index())


def process_count() -> int:
    jax = jax_module()

    return int(jax.process_count())


def is_primary_host(primary_host: int | None) -> bool:
    """Whether this process is the primary one; None: each is."""
    return primary_host is None or primary_host == process_index()


def sync_global_processes(name: str, **_: Any) -> None:
    """Waits until all processes are here."""
    if process_count() > 1:
        multihost_utils().sync_global_devices(name)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """What the source has, process 0 if None is said, on all processes."""
    if process_count() == 1:
        return in_tree
    return multihost_utils().broadcast_one_to_all(in_tree, is_source)


def reached_preemption(step: int) -> bool:
    """Whether JAX's preemption service says that all processes should save at this step."""
    return jax_says_so(step)
