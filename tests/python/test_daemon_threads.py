# SPDX-License-Identifier: Apache-2.0
"""Daemon threads that are in the engine when the interpreter ends: the process ends as others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell

# Until the process ends, in the engine or in what it calls.
_WORK = {
    "follow": "for step in store.follow(): pass",
    "load": "while True: store.load(2)",
    "update": "while True: store.update(store.load(1), since=1)",
    "verify": "while True: store.verify()",
    "callback": "store.export(2, path + '-export', mode='copy', progress=stays)",
}


@pytest.mark.parametrize("work", _WORK)
def test_the_interpreter_ends(path: Path, run_python: Any, work: str) -> None:
    with stepwell.open(path, codec="raw") as store:
        for step in (1, 2):
            store.save(step, {name: np.full(1 << 20, float(step)) for name in "abcdefgh"}).result()
    # atexit closes the stores that are open then; this one is opened behind it.
    status, out, error = run_python(f"""
import atexit, sys, threading, time
begun = threading.Event()

def stays(done, total):
    begun.set()
    while True:
        time.sleep(0.001)

def work():
    closed.wait()
    path = sys.argv[1]
    store = stepwell.open(path, mode="r")
    store.load(1)
    {'' if work == 'callback' else 'begun.set()'}
    {_WORK[work]}

def at_exit():
    closed.set()
    begun.wait(30)
    time.sleep(0.05)

closed = threading.Event()
atexit.register(at_exit)
import stepwell
stepwell.open(sys.argv[1], mode="r").load(1)
for _ in range(1 if {work == 'callback'} else 3):
    threading.Thread(target=work, daemon=True).start()
print("ends")
""", path)
    assert (status, out, error) == (0, "ends\n", "")
