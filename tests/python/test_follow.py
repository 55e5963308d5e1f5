# SPDX-License-Identifier: Apache-2.0
"""Store.follow: the newest step, again and again, in this process and in others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import _follow

STATE = {"w": np.arange(10)}
FOREVER = 300.0  # seconds; a wait that nothing ends fails the test

# Does what it is told, a line of JSON each: [method, arguments].
WRITER = """
import json, sys, numpy as np, stepwell
with stepwell.open(sys.argv[1]) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "save":
            store.save(arguments[0], {"w": np.full(10, arguments[0])}, if_exists="replace").result()
        else:
            getattr(store, name)(*arguments)
        print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the kernel tells ends a wait."""
    monkeypatch.setattr(_follow, "_LOOK_TOLD_SECONDS", FOREVER)


@pytest.fixture
def writer(path: Path) -> Iterator[Callable[..., Any]]:
    """Starts processes that write: `tell(name, arguments)` has one do something."""

    def start() -> Callable[..., Any]:
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == "ready\n"

        def tell(*command: Any) -> None:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        tell.process = process  # type: ignore[attr-defined]
        return tell

    started: list[Any] = []
    yield start
    for process in started:
        process.kill()
        process.communicate()


def given_next(follower: stepwell.Follower) -> threading.Thread:
    """Starts to wait, on a thread; its `result()` is the step."""
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.append(next(follower, None)))
    thread.start()

    def result() -> int | None:
        thread.join(FOREVER)
        return found[0]

    thread.result = result  # type: ignore[attr-defined]
    return thread


def test_steps_of_another_process(path, writer):
    tell = writer()
    with stepwell.open(path, mode="r") as store:
        follower = store.follow()
        assert follower.step is None and not follower.deleted
        first = given_next(follower)
        tell("save", 3)
        assert first.result() == follower.step == 3
        second = given_next(follower)
        tell("save", 5)
        assert second.result() == 5
        assert store.load(5)["w"].tolist() == [5] * 10
        for step in (6, 7, 9):  # these two come and go while the caller works
            tell("save", step)
        assert next(follower) == 9
        assert list(store.follow(timeout=0)) == [9]


def test_another_commit_is_given_again_and_the_same_one_is_not(path, writer):
    tell = writer()
    tell("save", 4)
    tell("save", 5)
    with stepwell.open(path, mode="r") as store:
        follower = store.follow(timeout=timedelta(seconds=FOREVER))
        assert next(follower) == 5
        tell("pin", 5)  # the log goes on, and no step is another one
        waiting = given_next(follower)
        tell("unpin", 5)
        tell("save", 5)
        assert waiting.result() == 5  # saved anew
        tell("delete", 5)
        assert follower.deleted
        assert next(follower) == 4 and not follower.deleted  # after a rollback
        tell("save", 4)
        assert follower.deleted  # replaced
        assert next(follower) == 4 and not follower.deleted


def test_a_step_that_loses_an_item_is_the_same_one(path):
    with stepwell.open(path) as store:
        store.save(1, items={"a": STATE, "b": STATE}).result()
        follower = store.follow()
        assert next(follower) == 1
        store.delete(1, item="b")
        waiting = given_next(follower)
        store.save(2, STATE).result()
        assert waiting.result() == 2


def test_start(store):
    store.save(3, STATE).result()
    assert list(store.follow(start=3, timeout=0)) == []
    assert store.follow(start=3).step == 3
    assert list(store.follow(start=2, timeout=0)) == [3]
    assert list(store.follow(start=np.int64(4), timeout=0)) == [3]  # rolled back meanwhile
    follower = store.follow(start=3)
    store.save(3, STATE, if_exists="replace").result()
    assert next(follower) == 3
    for wrong in (-1, "3", 1.5):
        with pytest.raises(stepwell.InvalidArgumentError, match="step"):
            store.follow(start=wrong)
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(stepwell.InvalidArgumentError, match="timeout"):
            store.follow(timeout=wrong)


def test_the_timeout_ends_the_iteration(store):
    follower = store.follow(timeout=0.05)
    assert list(follower) == []
    store.save(0, STATE).result()
    assert next(follower, None) is None  # it has ended
    assert list(store.follow(timeout=0.05)) == [0]


def test_in_the_process_that_saves(store):
    follower = store.follow()
    for step in range(20):
        waiting = given_next(follower)
        store.save(step, STATE)
        assert waiting.result() == step


def test_close_ends_the_iteration(path, monkeypatch):
    with stepwell.open(path) as writer:
        writer.save(0, STATE).result()
    store = stepwell.open(path, mode="r")  # whose end changes nothing in the directory
    follower = store.follow(start=0)
    waits = threading.Event()
    wait = _follow.Commits.wait
    monkeypatch.setattr(_follow.Commits, "wait",
                        lambda *arguments: (waits.set(), wait(*arguments)))
    waiting = given_next(follower)
    waits.wait()
    store.close()
    assert waiting.result() is None
    assert next(follower, None) is None
    with pytest.raises(stepwell.Error, match="closed"):
        store.follow()
    with pytest.raises(stepwell.Error, match="closed"):
        follower.deleted  # noqa: B018


def test_it_goes_on_when_the_trainer_dies_and_another_one_comes(path, writer):
    tell = writer()
    tell("save", 0)
    with stepwell.open(path, mode="r") as store:
        follower = store.follow()
        assert next(follower) == 0
        waiting = given_next(follower)
        tell.process.kill()
        tell.process.wait()
        writer()("save", 1)
        assert waiting.result() == 1


INTERRUPTED = """
import signal, sys, stepwell
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' background jobs ignore it
with stepwell.open(sys.argv[1], mode="r") as store:
    print("ready", flush=True)
    try:
        for step in store.follow(start=0):
            print(step, flush=True)
    except KeyboardInterrupt:
        print("interrupted", store.latest, flush=True)
"""


def test_ctrl_c_ends_the_wait(path, start_python):
    with stepwell.open(path) as store:
        store.save(0, STATE).result()
        process = start_python(INTERRUPTED, path)
        assert process.stdout.readline() == "ready\n"
        store.save(1, STATE).result()
        assert process.stdout.readline() == "1\n"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=FOREVER)
        assert (out, err, process.returncode) == ("interrupted 1\n", "", 0)


# In a user namespace of its own, which may have no inotify.
UNTOLD = """
import ctypes, logging, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0:
    print("no namespace", flush=True)
    sys.exit()
with open("/proc/sys/user/max_inotify_instances", "w") as file:
    file.write("0")
import stepwell
logging.basicConfig(stream=sys.stdout, format="%(message)s")
with stepwell.open(sys.argv[1], mode="r") as store:
    for step in store.follow():
        print(step, flush=True)
        if step == 2:
            break
"""


def test_without_inotify_it_looks_and_says_so_once(path, start_python):
    with stepwell.open(path) as store:
        store.save(0, STATE).result()
        process = start_python(UNTOLD, path)
        first = process.stdout.readline()
        if first == "no namespace\n":
            pytest.skip("this user may make no user namespace")
        assert first == "0\n"
        said = process.stdout.readline()
        assert "by looking every 100 ms" in said and str(path) in said
        for step in (1, 2):
            store.save(step, STATE).result()
            assert process.stdout.readline() == f"{step}\n"
        assert process.communicate(timeout=FOREVER) == ("", "")


def test_a_forked_child_does_not_follow(store):
    store.save(0, STATE).result()
    follower = store.follow()
    child = os.fork()
    if child == 0:
        try:
            next(follower)
        except stepwell.ForkError:
            os._exit(17)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert next(follower) == 0
