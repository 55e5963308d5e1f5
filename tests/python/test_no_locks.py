# SPDX-License-Identifier: Apache-2.0
"""File systems without locks, made by support/no_locks.cc: nothing is written, all can be read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

import stepwell

BUILD = Path(os.environ["STEPWELL_BUILD_DIR"])
ERRORS = ("ENOSYS", "EOPNOTSUPP", "ENOLCK")


@pytest.fixture(params=ERRORS)
def no_locks(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a process that can lock no file."""
    (library,) = BUILD.rglob("libstepwell_no_locks.so")
    return {"LD_PRELOAD": str(library), "NO_LOCKS_ERRNO": str(getattr(errno, request.param))}


READ = """
import sys, stepwell
with stepwell.open(sys.argv[1], mode="r") as store:
    print(store.steps(), store.latest, store.load(2)["x"].tolist(), store[1]["x"][1:].tolist())
    print(store.verify().problems, store.stats()["steps"])
"""


def test_opening_for_writing_says_what_is_lacking(run_python, no_locks, path, tmp_path):
    with stepwell.open(path) as store:
        store.save(1, {"x": 1}).result()
    status, out, err = run_python("""
import errno, os, sys, stepwell
for path in sys.argv[1:]:
    try:
        stepwell.open(path)
    except stepwell.StorageError as error:
        print(error.errno == int(os.environ["NO_LOCKS_ERRNO"]), error)
""", path, tmp_path / "new", **no_locks)
    assert status == 0, err
    lines = out.splitlines()
    assert len(lines) == 2, out
    words = os.strerror(int(no_locks["NO_LOCKS_ERRNO"]))
    for line, where in zip(lines, (path, tmp_path / "new"), strict=True):
        assert line == (
            f"True {where}/LOCK: its file system cannot lock files ({words}), and Stepwell writes "
            "under locks: mount it with locks, or write on another file system; reading needs none")
    with stepwell.open(path) as store:  # and it is as it was
        assert store.load() == {"x": 1}


@pytest.mark.parametrize("end", ["closed", "killed", "open"])
def test_reading_needs_no_locks(run_python, start_python, no_locks, path, tmp_path, end):
    """A store that was closed, one whose writer was killed right after a step was durable, and one
    with a writer, which has locks."""
    writer = start_python("""
import os, sys, time, numpy as np, stepwell
store = stepwell.open(sys.argv[1])
for step in (1, 2):
    store.save(step, {"x": np.arange(3) * step}).result()
if sys.argv[2] == "closed":
    store.close()
print("saved", flush=True)
time.sleep(120)
""", path, end)
    assert writer.stdout.readline() == "saved\n"
    if end == "killed":
        writer.kill()
        writer.wait()
    status, out, err = run_python(READ, path, **no_locks)
    assert (status, out) == (0, "[1, 2] 2 [0, 2, 4] [1, 2]\n[] 2\n"), err
    # An export is written: under a lock at its destination, which is named.
    status, out, err = run_python("""
import sys, stepwell
with stepwell.open(sys.argv[1], mode="r") as store:
    try:
        store.export(2, sys.argv[2])
    except stepwell.StorageError as error:
        print(str(error).startswith(sys.argv[2]), "cannot lock files" in str(error))
""", path, tmp_path / "exported", **no_locks)
    assert (status, out) == (0, "True True\n"), err
    assert not (tmp_path / "exported").exists()


def test_doctor_and_the_program_say_it(no_locks, path, tmp_path):
    with stepwell.open(path) as store:
        store.save(1, {"x": 1}).result()
    environment = {**os.environ, **no_locks}

    def program(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(BUILD / "api/cli/stepwell"), *map(str, arguments)], text=True,
                              capture_output=True, env=environment, timeout=60, check=False)

    looked = program("doctor", tmp_path, "--json")
    warnings = {each["code"]: each["message"] for each in json.loads(looked.stdout)["warnings"]}
    assert "stores can be read, but not written" in warnings["no_locks"]
    assert program("ls", path).returncode == 0 and program("verify", path).returncode == 0
    refused = program("reclaim", path)
    assert refused.returncode == 1 and "cannot lock files" in refused.stderr
    assert "into which a training saved" not in refused.stderr  # it is a store
