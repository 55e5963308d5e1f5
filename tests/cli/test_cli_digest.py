# SPDX-License-Identifier: Apache-2.0
"""`stepwell digest`, against the digest of the tree."""

import pathlib

import numpy as np
import stepwell
from program import document, error, ok

TREE = {"params": {"w": np.arange(12.0).reshape(3, 4), "b": 1}, "name": "run"}


def test_digests(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as store:
        store.save(3, TREE)
        store.save(4, {"other": 1})
    assert ok("digest", tmp_path / "run") == stepwell.digest({"other": 1}) + "\n"
    assert ok("digest", tmp_path / "run", "latest") == stepwell.digest({"other": 1}) + "\n"
    assert ok("digest", tmp_path / "run", "3") == stepwell.digest(TREE) + "\n"
    part = document("digest", tmp_path / "run", "3", "params", "--untrusted")
    assert (part["step"], part["path"], part["digest"]) == (
        3, "params", stepwell.digest(TREE["params"]))
    assert "5" in error("digest", tmp_path / "run", "5", status=3)
    assert "nearest: params" in error("digest", tmp_path / "run", "3", "param", status=3)
    assert "latest" in error("digest", tmp_path / "run", "x", status=2)
