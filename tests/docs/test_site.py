# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning: every page is in it, and every link and anchor exists."""

import os
import pathlib
import subprocess
import sys

import stepwell

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_site_builds(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / "api/docs/mkdocs.yml",
         "-d", tmp_path / "site"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site/reference/index.html").read_text(encoding="utf-8")
    for name in stepwell.__all__:
        assert f"stepwell.{name}" in reference or f"stepwell.errors.{name}" in reference, name
    for name in stepwell.policy.__all__:
        assert f'id="stepwell.policy.{name}"' in reference, f"policy.{name}"
    for name in dir(stepwell.Store):
        if not name.startswith("_"):
            assert f'id="stepwell.Store.{name}"' in reference, f"Store.{name}"
