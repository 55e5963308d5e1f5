# SPDX-License-Identifier: Apache-2.0
"""500 steps with donated buffers and a save at each, from whatever calls: every step is saved as it
was when `save` was called."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import donated_loop
import notebooks
import stepwell

_STEPS = 500


def test_asyncio(store):
    steps = range(_STEPS)
    assert asyncio.run(donated_loop.run_async(store, 1, steps)) == list(steps)
    donated_loop.check(store, 1, steps)


def test_threads(store):
    """Four runs in one store, each with steps of its own."""
    parts = [range(first, first + _STEPS // 4) for first in range(0, _STEPS, _STEPS // 4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: donated_loop.run(store, part.start, part), parts))
    store.wait()
    assert store.steps() == list(range(_STEPS))
    for part in parts:
        donated_loop.check(store, part.start, part)


def test_a_notebook_kernel(path):
    """Cells that call `save` beside the kernel's event loop, and a cell that awaits in it."""
    cells = [f"import donated_loop, stepwell\nstore = stepwell.open({str(path)!r})",
             f"donated_loop.run(store, 1, range({_STEPS}))",
             f"await donated_loop.run_async(store, 2, range({_STEPS}, {_STEPS + 100}))",
             "store.close()"]
    notebooks.execute(nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)]),
                      path.parent)
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == list(range(_STEPS + 100))
        donated_loop.check(store, 1, range(_STEPS))
        donated_loop.check(store, 2, range(_STEPS, _STEPS + 100))


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_multiprocessing(path, kind):
    program = Path(donated_loop.__file__)
    done = subprocess.run([sys.executable, program, kind, path, str(_STEPS)], text=True,
                          capture_output=True, timeout=300, check=False,
                          env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == list(range(_STEPS))
        donated_loop.check(store, 5, range(_STEPS))
