# SPDX-License-Identifier: Apache-2.0
"""A trainer, and a follower that updates trees, with kills of either: support/follower_kills.py."""

from __future__ import annotations

import pathlib

import pytest
from follower_kills import run

TREES = 80  # 40 of NumPy arrays, 40 of jax arrays


@pytest.mark.parametrize("seed", range(2))
def test_each_tree_of_a_follower_is_a_step(tmp_path: pathlib.Path, seed: int) -> None:
    found = run(tmp_path, seed, TREES)
    assert found.trees >= TREES and found.updates > 0 and found.kills > 0
    assert found.grew_bytes < 64 << 20
