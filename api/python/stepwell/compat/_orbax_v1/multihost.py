# SPDX-License-Identifier: Apache-2.0
"""ocp.multihost: the processes of jax.distributed."""

from __future__ import annotations

from collections.abc import Set

from . import trees


def process_count() -> int:
    jax = trees.import_jax()
    return 1 if jax is None else int(jax.process_count())


def process_index() -> int:
    jax = trees.import_jax()
    return 0 if jax is None else int(jax.process_index())


def is_primary_host(primary_host: int | None) -> bool:
    """Whether this process is the primary one; with None each is."""
    return primary_host is None or primary_host == process_index()


def is_pathways_backend() -> bool:
    return False


async def sync_global_processes(key: str, *, operation_id: str | None = None,
                                timeout: int | None = None,
                                processes: Set[int] | None = None) -> None:
    """Waits until all processes have called it."""
    if process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(f"{key}.{operation_id}")
