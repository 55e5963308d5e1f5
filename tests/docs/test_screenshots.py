# SPDX-License-Identifier: Apache-2.0
"""The guides' pictures of a report: the script that draws them works, and they are small."""

import pathlib
import subprocess
import sys

import numpy as np
from PIL import Image

import stepwell

DOCS = pathlib.Path(__file__).resolve().parents[2] / "api/docs"


def sizes(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Width and height of each picture, in pixels."""
    found = {}
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            found[path.name] = picture.size
    return found


def test_the_pictures_are_drawn(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run1", statistics=True) as store:
        for step in range(3):
            kernel = np.full((8, 8), step, np.float32)
            state = {"params": {"layers": [{"qkv": {"kernel": kernel}}]}}
            store.save(step, state, metrics={"loss": 1.0}).result()
    subprocess.run([sys.executable, DOCS / "screenshots.py", tmp_path / "run1", tmp_path],
                   check=True)
    drawn, kept = sizes(tmp_path), sizes(DOCS / "pages")
    assert drawn == kept and len(kept) == 3
    assert all(path.stat().st_size <= 150_000 for path in DOCS.glob("pages/*.png"))
