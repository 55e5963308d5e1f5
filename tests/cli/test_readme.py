# SPDX-License-Identifier: Apache-2.0
"""The README's example runs as printed, and its commands work on the store that it makes."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_example_and_the_commands_work(tmp_path: pathlib.Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", example + "\nassert rows.shape == (16, 256)\n"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "99" in result.stdout

    commands = re.findall(r"^    \$ (stepwell .*)$", readme, re.MULTILINE)
    assert len(commands) == 7
    program = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    for command in commands:
        arguments = [str(program), *shlex.split(command, comments=True)[1:]]
        result = subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout


def test_every_folder_of_the_map_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    folders = re.findall(r"^    (\w+)/ {2,}", readme, re.MULTILINE)
    assert folders == ["io", "format", "db", "api", "tests", "bench", "fuzz"]
    for folder in folders:
        assert (ROOT / folder).is_dir()
