# SPDX-License-Identifier: Apache-2.0
"""Runs the program `stepwell` as a user runs it."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
import stepwell.__main__

# The commands that the package runs need it.
os.environ.setdefault("STEPWELL_PYTHON", sys.executable)
PROGRAM = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
# Stands for Python: notes what it is to run.
_NOTES = """#!/bin/sh
printf '%s\\0' "$@" > "$STEPWELL_HANDED"
"""


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`options`: of subprocess.run."""
    command = [str(PROGRAM), *map(str, arguments)]
    environment = {**os.environ, "TZ": "UTC"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, check=False, **options
    )


def _run_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """As run, but what the program hands to Python runs in this process: a Python that starts takes
    longer than most commands. Tests with `run` check that the program starts it."""
    with tempfile.TemporaryDirectory() as folder:
        python = pathlib.Path(folder, "python")
        python.write_text(_NOTES)
        python.chmod(0o700)
        handed = pathlib.Path(folder, "handed")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STEPWELL_PYTHON", str(python))
            patch.setenv("STEPWELL_HANDED", str(handed))
            result = run(*arguments)
        if not handed.exists():
            return result
        words = handed.read_bytes().split(b"\0")[2:-1]  # behind -c and the program's own lines
    assert result.stdout == result.stderr == ""
    out, err = _Captured(), _Captured()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _utc():
        try:
            status = stepwell.__main__.run([os.fsdecode(word) for word in words])
        except SystemExit as end:  # of --help
            status = int(end.code or 0)
    return subprocess.CompletedProcess(result.args, status, out.text(), err.text())


class _Captured(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace")

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return io.TextIOWrapper(io.BytesIO(self.buffer.getvalue()), encoding="utf-8").read()


@contextlib.contextmanager
def _utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def ok(*arguments: object) -> str:
    result = _run_here(*arguments)
    assert result.returncode == 0, result
    assert result.stderr == ""
    return result.stdout


def document(*arguments: object, status: int = 0) -> dict[str, Any]:
    """The one JSON document that the command prints."""
    result = _run_here(*arguments, "--json")
    assert result.returncode == status, result
    assert result.stderr == ""
    return parsed_document(result.stdout)


def parsed_document(text: str | bytes) -> dict[str, Any]:
    parsed = json.loads(text, object_pairs_hook=sorted_pairs)
    assert parsed["schema"] == 1
    return dict(parsed)


def cat_here(store: object, step: object, path: object, *options: str) -> bytes:
    """Returns the output of `stepwell cat`, by the words that the program hands to Python
    (cmd_arrays.cc), in this process, which need not start Python again. The program's tests check
    that it hands them over."""
    printed = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(printed, encoding="utf-8")) as stdout:
        words = ["cat", *options, "--", str(store), str(step), str(path)]
        assert stepwell.__main__.run(words) == 0
        stdout.flush()
    return printed.getvalue()


def sorted_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert pairs == sorted(pairs, key=lambda pair: pair[0])
    return dict(pairs)


def error(*arguments: object, status: int) -> str:
    """The message for people; nothing on stdout."""
    result = _run_here(*arguments)
    assert result.returncode == status, result
    assert result.stdout == ""
    assert result.stderr.startswith("stepwell: ")
    return result.stderr
