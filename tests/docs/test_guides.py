# SPDX-License-Identifier: Apache-2.0
"""README and the guides do what they say: every block, in order, in an empty directory, twice."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
import forks
from guide_blocks import blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]).absolute()
PAGES = ROOT / "api/docs/pages"
GUIDES = [ROOT / "README.md", *sorted(PAGES.glob("*.md"))]
RUN = [guide for guide in GUIDES if any(not block.not_run for block in blocks(guide))]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Makes the environment that the guides need: `python`, `stepwell`, and the library below
    $HOME."""
    home = tmp_path_factory.mktemp("home")
    programs = home / "bin"
    programs.mkdir()
    (programs / "stepwell").symlink_to(BUILD / "api/cli/stepwell")
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    subprocess.run(["cmake", "--install", BUILD, "--component", "library",
                    "--prefix", home / "stepwell"], check=True, capture_output=True)
    return {**os.environ, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}",
            "STEPWELL_PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("block", [
    "```python\nassert False\n```\n", "```console\n$ true\n$ false\n$ true\n```\n",
    "```sh\ntrue\n```\n", "```console\nfalse\n```\n"])
def test_a_block_that_fails_is_caught(block: str, tmp_path: pathlib.Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text("# A guide\n\n" + block)
    script = pathlib.Path(__file__).with_name("guide_blocks.py")
    done = subprocess.run([sys.executable, script, guide], cwd=tmp_path, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 1
    assert "guide.md:4" in done.stderr or "line 4" in done.stderr, done.stderr


def test_guides_that_run() -> None:
    assert {guide.stem for guide in RUN} == {
        "README", "index", "first-steps", "cookbook", "followers", "many-processes", "orbax",
        "moving-from-orbax", "moving-from-flax", "moving-from-equinox", "cpp", "command-line",
        "operations", "seeing-a-run"}


@pytest.mark.parametrize("guide", RUN, ids=lambda guide: guide.stem)
def test_every_block_runs_twice(
    guide: pathlib.Path, environment: dict[str, str], tmp_path: pathlib.Path
) -> None:
    script = pathlib.Path(__file__).with_name("guide_blocks.py")
    for attempt in ("first", "second"):
        ports = [f"{port}={free_port()}" for port in (29500, 29501)]
        status, out, err = forks.run(script, guide, *ports, folder=tmp_path,
                                     environment=environment, timeout=600)
        assert status == 0, f"the {attempt} time:\n{out}\n{err}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_only_shell_commands_are_passed_over(guide: pathlib.Path) -> None:
    """Commands that install, or reach another machine; the files that they name are there."""
    for block in blocks(guide):
        if not block.not_run:
            continue
        assert block.language == "sh", f"{guide.name}:{block.line}"
        for name in re.findall(r"^(?:api|tests|bench|fuzz)/\w+", block.text, re.MULTILINE):
            assert os.access(ROOT / name, os.X_OK), name
