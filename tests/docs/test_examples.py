# SPDX-License-Identifier: Apache-2.0
"""The examples that no guide and no other test runs."""

import os
import pathlib
import re
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "api/examples/follow_training.py"
SAMPLED = re.compile(r"sampler: step (\d+), read [\d,]+ bytes, digest is right: True\n")


def start(folder: pathlib.Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, EXAMPLE, "run1", *map(str, arguments)], cwd=folder,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "JAX_PLATFORMS": "cpu"})


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return out.splitlines(keepends=True)


def test_follow_training(tmp_path: pathlib.Path) -> None:
    lines = lines_of(start(tmp_path, "--steps", 20))
    assert any(line.startswith("evaluator: step 19, loss ") for line in lines), lines
    assert any(line.startswith("sampler: step 19, ") for line in lines), lines

    # Roles that begin one after the other: the followers see the trainer come back.
    followers = [start(tmp_path, "--steps", 40, "--role", role) for role in ("evaluate", "sample")]
    try:
        first = [process.stdout.readline() for process in followers if process.stdout is not None]
        assert [line.split(",")[0] for line in first] == ["evaluator: step 19", "sampler: step 19"]
        lines_of(start(tmp_path, "--steps", 40, "--role", "train"))
        evaluated, sampled = map(lines_of, followers)
    finally:
        for process in followers:
            process.kill()
    assert evaluated[-1].startswith("evaluator: step 39, loss ")
    steps = [SAMPLED.fullmatch(line) for line in [first[1], *sampled]]
    assert None not in steps and steps[-1][1] == "39", sampled
