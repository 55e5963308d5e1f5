# SPDX-License-Identifier: Apache-2.0
"""Runs the program `stepwell` as a user runs it."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import stepwell.__main__

# The commands that the package runs need it.
os.environ.setdefault("STEPWELL_PYTHON", sys.executable)
PROGRAM = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), *map(str, arguments)]
    environment = {**os.environ, "TZ": "UTC"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, check=False, **options
    )


def ok(*arguments: object) -> str:
    result = run(*arguments)
    assert result.returncode == 0, result
    assert result.stderr == ""
    return result.stdout


def document(*arguments: object, status: int = 0) -> dict[str, Any]:
    """The one JSON document that the command prints."""
    result = run(*arguments, "--json")
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
    result = run(*arguments)
    assert result.returncode == status, result
    assert result.stdout == ""
    assert result.stderr.startswith("stepwell: ")
    return result.stderr
