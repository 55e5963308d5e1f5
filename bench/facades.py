# SPDX-License-Identifier: Apache-2.0
"""The facades beside what they stand in for: how long `save_async` keeps the caller, and a save
takes, of many small leaves. `python bench/facades.py [DIRECTORY]`; medians, in ms."""

from __future__ import annotations

import logging
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

LEAVES, ROUNDS = 1000, 15


def measure(save: Callable[[int], Any]) -> tuple[float, float]:
    blocked, whole = [], []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        response = save(number)
        blocked.append(time.perf_counter() - begin)
        response.result()
        whole.append(time.perf_counter() - begin)
    return statistics.median(blocked) * 1e3, statistics.median(whole) * 1e3


def main() -> None:
    import jax
    import jax.numpy as jnp
    from orbax.checkpoint import v1 as orbax

    from stepwell.compat import orbax_v1

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    state = {f"leaf{i}": jnp.full(1024, i, jnp.float32) for i in range(LEAVES)}
    jax.block_until_ready(state)
    folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    print(f"{LEAVES} leaves of 4 KiB, {ROUNDS} rounds: ms until save_async returns, until durable")
    for name, library in (("stepwell", orbax_v1), ("orbax", orbax)):
        path = folder / name
        blocked, whole = measure(lambda number: library.save_async(path, state, overwrite=True))
        print(f"{name:9} save_async               {blocked:8.2f} {whole:8.1f}")
        keeps = library.training.preservation_policies.LatestN(3)
        with library.training.Checkpointer(folder / f"{name}-run", preservation_policy=keeps
                                           ) as checkpointer:
            blocked, whole = measure(lambda number: checkpointer.save_async(number, state))
        print(f"{name:9} Checkpointer.save_async  {blocked:8.2f} {whole:8.1f}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
