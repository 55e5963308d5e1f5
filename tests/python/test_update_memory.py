# SPDX-License-Identifier: Apache-2.0
"""Memory that `update` cannot write, and Ctrl-C while it writes."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stepwell
from stepwell._update import _copy_all


@pytest.mark.parametrize("overlap", [
    lambda: np.lib.stride_tricks.as_strided(np.zeros(1, "i8"), (1000,), (0,)),
    lambda: np.lib.stride_tricks.as_strided(np.zeros(64, "i8"), (25, 40), (8, 8)),
    lambda: np.lib.stride_tricks.as_strided(np.zeros(1, ">i8"), (1000,), (0,))])
def test_an_array_whose_elements_overlap_is_refused(path: Path, overlap: Any) -> None:
    held = overlap()
    with stepwell.open(path) as store:
        store.save(0, {"a": np.zeros(held.shape, "i8")}).result()
        store.save(1, {"a": np.arange(1000).reshape(held.shape)}).result()
        with pytest.raises(stepwell.InvalidArgumentError, match="of the array 'a' share memory"):
            store.update({"a": held}, since=0, to=1)
        assert not held.any()
        for whole in (np.zeros((50, 20, 2), "i8")[::2, ::-1, 1], np.zeros((20, 25), "i8").T):
            store.save(2, {"a": np.zeros(whole.shape)}, if_exists="replace")
            store.save(3, {"a": np.ones(whole.shape, "i8")}, if_exists="replace")
            store.save(2, {"a": np.zeros(whole.shape, "i8")}, if_exists="replace").result()
            assert store.update({"a": whole}, since=2, to=3)["a"].all()


def test_ctrl_c_leaves_one_of_two_steps() -> None:
    """At any line of what writes arrays that NumPy converts."""
    lines = itertools.count(1)
    interrupted = 0
    for line in lines:
        arrays, left = [np.zeros(3, ">i4") for _ in range(3)], line

        def trace(frame: Any, event: str, argument: object) -> Any:
            nonlocal left
            if event == "line" and frame.f_code is _copy_all.__code__:
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            _copy_all([(array, np.ones(3, "i4")) for array in arrays])
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
        assert len({bool(array.all()) for array in arrays}) == 1, line
        if left > 0:
            break
    assert interrupted > 5
