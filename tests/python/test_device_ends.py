# SPDX-License-Identifier: Apache-2.0
"""The end of an interpreter while copies from accelerators are under way behind a step."""

from __future__ import annotations

import pathlib
from typing import Any

import device_arrays
import numpy as np

import stepwell

_SUPPORT = pathlib.Path(device_arrays.__file__).parent
_BEGIN = """
import atexit, faulthandler, os, signal, sys, threading, time
import numpy as np

sys.path.append(sys.argv[2])
import device_arrays

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
faulthandler.dump_traceback_later(30, exit=True)
meter = device_arrays.Meter()
meter.on_copy = lambda name: time.sleep(0.1)

def save():
    import stepwell
    from stepwell._pytree import host_copies

    host_copies.detached = device_arrays.detached
    global store
    store = stepwell.open(sys.argv[1], device_window_bytes=1 << 20)
    store.save(0, {f"w{i}": device_arrays.DeviceArray(f"w{i}", np.full(1 << 17, i), meter)
                   for i in range(10)}, hold=True)
"""

_INTERRUPTED = _BEGIN + """
save()
meter.on_copy = lambda name: (os.kill(os.getpid(), signal.SIGINT) if name == "w4" else
                              time.sleep(0.1))
"""

_LATE = _BEGIN + """
from stepwell._runtime import service

atexit.unregister(service._at_exit)
atexit.register(save)
atexit.register(service._at_exit)  # runs before
"""


def test_ctrl_c_at_the_end_gives_copies_up(tmp_path: pathlib.Path, run_jax: Any) -> None:
    status, _, err = run_jax(_INTERRUPTED, tmp_path / "run", _SUPPORT)
    assert status == 1 and "the process ended before" in err, err
    with stepwell.open(tmp_path / "run") as store:  # the lock is free
        assert store.steps() == []


def test_a_save_behind_the_end_makes_its_copies_before(tmp_path: pathlib.Path, run_jax: Any
                                                       ) -> None:
    status, _, err = run_jax(_LATE, tmp_path / "run", _SUPPORT)
    assert status == 0, err
    with stepwell.open(tmp_path / "run", mode="r") as store:
        loaded = store.load(0)
        for i in range(10):
            np.testing.assert_array_equal(loaded[f"w{i}"], np.full(1 << 17, i))
