# SPDX-License-Identifier: Apache-2.0
"""Saves through the facades that Ctrl-C or a signal's handler interrupts, wherever that is, and
roots that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
import pytest

import stepwell
from stepwell._deciding import Decider
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as ocp
from storm import in_a_storm

# A call that waits for ever ends the program, with the stacks of its threads.
_HEAD = """
import faulthandler, os, signal, sys, threading, numpy as np, stepwell
from stepwell.compat import orbax as v0, orbax_v1 as ocp
faulthandler.dump_traceback_later(200, exit=True)
path = sys.argv[1]
state = {"w": np.arange(5)}
"""


@pytest.mark.parametrize("facade", ["save", "save_async", "StandardCheckpointer"])
def test_a_handler_that_saves_what_it_interrupted_is_refused(
        run_jax: Callable[..., tuple[int, str, str]], tmp_path: Path, facade: str) -> None:
    status, out, err = run_jax(_HEAD + """
save = {
    "save": lambda: ocp.save(path, state, overwrite=True),
    "save_async": lambda: ocp.save_async(path, state, overwrite=True).result(),
    "StandardCheckpointer": lambda: v0.StandardCheckpointer().save(path, state, force=True),
}[sys.argv[2]]
from stepwell.compat import _single
snapshot = _single._snapshot

def interrupted(*arguments):
    started = snapshot(*arguments)
    signal.raise_signal(signal.SIGALRM)
    return started

def handler(number, frame):
    _single._snapshot = snapshot
    try:
        save()
    except stepwell.Error as error:
        print("interrupted a save" in str(error))

signal.signal(signal.SIGALRM, handler)
_single._snapshot = interrupted
save()
save()
assert ocp.load(path)["w"].tolist() == list(range(5))
""", tmp_path / "a", facade)
    assert (status, out) == (0, "True\n"), err


@pytest.mark.parametrize("call", ["save", "save_async", "remove"])
def test_ctrl_c_at_any_line_leaves_no_claim(
        run_jax: Callable[..., tuple[int, str, str]], tmp_path: Path, call: str) -> None:
    status, out, err = run_jax(_HEAD + """
sys.path.append(sys.argv[3])
from lines import interrupt_at
from stepwell._runtime import durable, threads
from stepwell.compat import _claim, _resolve, _single, _work
files = {module.__file__ for module in (_claim, _single, _work, _resolve, durable, threads)}
call = {
    "save": lambda: ocp.save(path, state, overwrite=True),
    "save_async": lambda: ocp.save_async(path, state, overwrite=True).result(),
    "remove": lambda: _resolve.delete_item(path, "b"),
}[sys.argv[2]]

line = 0
while True:
    line += int(sys.argv[4])
    if sys.argv[2] == "remove":
        ocp.save_checkpointables(path, {"a": state, "b": state}, overwrite=True)
    if not interrupt_at(line, files, call)[0]:
        break
    ocp.save(path, state, overwrite=True)  # waits for no claim
    assert ocp.load(path)["w"].tolist() == list(range(5))
assert line > 30, line
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)], os.listdir(
    os.path.dirname(path))
assert not _claim._claims.by_path
""", tmp_path / "runs" / "a", call, Path(__file__).parents[1] / "crash",
        max(1, 7 // in_a_storm(1)))  # in a storm at every line
    assert (status, out) == (0, ""), err


def test_a_handler_that_saves_another_step_while_old_ones_are_chosen(tmp_path: Path) -> None:
    class Policy(v0.checkpoint_managers.PreservationPolicy):
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            if len(checkpoints) == 3 and not raised:
                raised.append(True)
                signal.raise_signal(signal.SIGALRM)
            return [i >= len(checkpoints) - 2 for i in range(len(checkpoints))]

    def handler(*_: object) -> None:
        manager.save(100, args=v0.args.StandardSave(state))

    raised: list[bool] = []
    state = {"w": np.arange(3)}
    options = v0.CheckpointManagerOptions(preservation_policy=Policy(),
                                          enable_async_checkpointing=False)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with v0.CheckpointManager(tmp_path, options=options) as manager:
            for step in range(3):
                manager.save(step, args=v0.args.StandardSave(state))
            assert 100 in manager.all_steps() and 2 in manager.all_steps()
            manager.save(101, args=v0.args.StandardSave(state))
            assert manager.latest_step() == 101
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("place", ["store", "root"])
def test_ctrl_c_within_close_gives_the_lock_back(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Decider, "stop", interrupted)
        if place == "store":
            store = stepwell.open(tmp_path / ".stepwell")
            with pytest.raises(KeyboardInterrupt):
                store.close()
        else:
            manager = v0.CheckpointManager(tmp_path)
            with pytest.raises(KeyboardInterrupt):
                manager.close()
    stepwell.open(tmp_path / ".stepwell").close()
    with v0.CheckpointManager(tmp_path) as again:
        assert again.save(1, args=v0.args.StandardSave({"w": np.ones(2)}))


def test_a_root_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    state = {"w": np.arange(4.0)}
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    with v0.CheckpointManager(own) as manager:
        manager.save(1, args=v0.args.StandardSave(state))
    with orbax.CheckpointManager(theirs) as real:
        real.save(1, args=orbax.args.StandardSave(state))
    for each in [path for root in (own, theirs) for path in (root, *root.rglob("*"))]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    program = _HEAD + """
for directory in sys.argv[1:]:
    with v0.CheckpointManager(directory) as manager:
        assert manager.all_steps() == [1] and manager.latest_step() == 1
        restored = manager.restore(1, args=v0.args.StandardRestore({"w": np.zeros(4)}))
        assert restored["w"].tolist() == [0, 1, 2, 3]
        try:
            manager.save(2, args=v0.args.StandardSave({"w": np.zeros(4)}))
        except PermissionError as error:
            assert "Permission denied" in str(error), error
        else:
            raise SystemExit("saved")
    with ocp.training.Checkpointer(directory) as checkpointer:
        assert checkpointer.load_checkpointables(1)["default"]["w"].tolist() == [0, 1, 2, 3]
"""
    # Root, too, is bound by permissions without these capabilities.
    unbound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run([*(unbound if os.geteuid() == 0 else []), sys.executable, "-c", program,
                           own, theirs], capture_output=True, text=True, timeout=300, check=False)
    for each in [path for root in (own, theirs) for path in (root, *root.rglob("*"))]:
        each.chmod(0o755)
    assert done.returncode == 0, done.stderr
