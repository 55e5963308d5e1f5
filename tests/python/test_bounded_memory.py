# SPDX-License-Identifier: Apache-2.0
"""Digests, patches and renamed exports of an array take memory for its parts, not for all of it;
updates of a tree, for what changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stepwell

MIB = 1 << 20

SCRIPT = """
import sys, stepwell
import stepwell._backend.tensors, stepwell._digest, stepwell._load.slicing
from stepwell.rename import Transpose

for module in (stepwell._backend.tensors, stepwell._digest, stepwell._load.slicing):
    module.PART_BYTES = 1 << 20

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) << 10

def run(store, small):
    path = "small" if small else "large"
    target = f"{sys.argv[1]}-{sys.argv[2]}-{path}.safetensors"
    if sys.argv[2] == "digest":
        store.digest(2, path)
    elif sys.argv[2] == "update":
        store.update(held[path], 1, 2, path)
    elif sys.argv[2] == "patch":
        store.export_patch(1, 2, target, item=path)
    else:
        store.export(2, target, to="safetensors", path=path, rename=[Transpose("**")])

with stepwell.open(sys.argv[1], "r") as store:
    if sys.argv[2] == "update":
        held = {path: store.load(1, path) for path in ("small", "large")}
    run(store, True)
    with open("/proc/self/clear_refs", "w") as peaks:
        peaks.write("5")  # the peak is what it is now
    before = peak()
    run(store, False)
    print(peak() - before)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps with an array of 128 MiB, and a small one; in `delta`, as differences."""
    path = tmp_path_factory.mktemp("saved")
    for name in ("run", "delta"):
        large = np.random.default_rng(0).integers(0, 60000, (512, MIB // 8), dtype=np.uint16)
        with stepwell.open(path / name, delta=name == "delta") as store:
            for step in (1, 2):
                store.save(step, {"large": {"w": large}, "small": {"w": large[:2, :1000] + step}})
                store.wait()
                large[::7, ::97] += 1
    return path


@pytest.mark.parametrize("job", ["digest", "patch", "export", "update"])
def test_parts_are_all_that_is_in_memory(saved: Path, job: str) -> None:
    path = saved / ("delta" if job == "update" else "run")
    done = subprocess.run([sys.executable, "-c", SCRIPT, path, job], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < (64 if job == "update" else 80) * MIB
