# SPDX-License-Identifier: Apache-2.0
"""A directory that several threads of a process use through the facades."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import stepwell
from stepwell.compat import flax as checkpoints


def test_a_save_waits_for_another_threads_close_of_the_directory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closing, go_on = threading.Event(), threading.Event()
    close = stepwell.Store.close

    def slow_close(store: stepwell.Store) -> None:
        if not closing.is_set():
            closing.set()
            go_on.wait(60)
        close(store)

    monkeypatch.setattr(stepwell.Store, "close", slow_close)
    threads = [threading.Thread(target=checkpoints.save_checkpoint, args=(tmp_path, {"w": 1}, step),
                                kwargs={"keep": 2}) for step in range(2)]
    threads[0].start()
    closing.wait(60)
    threads[1].start()
    threads[1].join(0.2)  # meets the store that is being closed
    go_on.set()
    for thread in threads:
        thread.join()
    assert checkpoints.available_steps(tmp_path) == [0, 1]
