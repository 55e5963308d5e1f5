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
    status, out, err = _python_half([os.fsdecode(word) for word in words])
    return subprocess.CompletedProcess(result.args, status, out.decode(), err.decode())


def _python_half(words: list[str]) -> tuple[int, bytes, bytes]:
    """What Python makes of the words that the program hands to it: status, stdout, stderr."""
    printed = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(each, encoding="utf-8", errors="backslashreplace")
                for each in printed)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _utc():
        try:
            status = stepwell.__main__.run(words)
        except SystemExit as end:  # of --help
            status = int(end.code or 0)
    out.flush()
    err.flush()
    return status, printed[0].getvalue(), printed[1].getvalue()


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
    """Returns the output of `stepwell cat`, which _run_here would decode, and of which some tests
    want hundreds: by the words of cmd_arrays.cc, without the program."""
    status, out, _ = _python_half(["cat", *options, "--", str(store), str(step), str(path)])
    assert status == 0
    return out


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
