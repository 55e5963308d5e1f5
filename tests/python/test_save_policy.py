# SPDX-License-Identifier: Apache-2.0
"""Which steps are saved: policies of open(save=), and signals that announce the end."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time

import pytest
from group_runs import run

import stepwell
from stepwell.policy import SaveAfter, SaveAt, SaveEvery, SaveOnPreemption, SaveWhenIdle
from test_handles import Held
from storm import in_a_storm


def saved(store: stepwell.Store, steps: range) -> list[int]:
    """Runs a loop; the steps that were saved."""
    for step in steps:
        if store.should_save(step):
            store.save(step, {"x": step}).result()
    return store.steps()


@pytest.mark.parametrize(("policy", "want"), [
    (None, list(range(12))),
    (SaveEvery(5), [0, 5, 10]),
    (SaveAt([3, 7, 100]), [3, 7]),
    (SaveAt(7), [7]),
    (SaveEvery(6) | SaveAt([1]), [0, 1, 6]),
    (SaveEvery(7) | SaveAt([1]) | SaveAfter(1000), [0, 1, 7]),
    (SaveAfter(1000), [0]),
    (SaveAfter(datetime.timedelta(0)), list(range(12))),
    (SaveWhenIdle(), list(range(12))),
    (SaveWhenIdle(1000), [0]),
], ids=repr)
def test_which_steps_are_saved(path, policy, want):
    with stepwell.open(path, save=policy) as store:
        assert saved(store, range(12)) == want
        assert not any(store.should_save(step) for step in want)  # they exist
        store.save(50, {"x": 1}).result()
        assert not store.should_save(49)  # it is below the newest


def test_steps_under_way_count_as_there(path):
    with stepwell.open(path, save=SaveEvery(1) | SaveWhenIdle()) as store:
        held = Held()
        store._track(held)  # step 7
        assert [step for step in range(5, 10) if store.should_save(step)] == [8, 9]
        held.finish()
        assert [step for step in range(5, 10) if store.should_save(step)] == [5, 6, 7, 8, 9]


def test_idle_means_that_no_save_is_under_way(path):
    with stepwell.open(path, save=SaveWhenIdle()) as store:
        held = Held()
        store._track(held)
        assert not store.should_save(8)
        held.finish()
        assert store.should_save(8)


def test_time_passes_between_saves_and_from_session_to_session(path, monkeypatch):
    now, wall = time.monotonic(), time.time_ns()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with stepwell.open(path, save=SaveAfter(60)) as store:
        assert saved(store, range(3)) == [0]
        now += 59
        assert not store.should_save(3)
        now += 1
        assert saved(store, range(3, 9)) == [0, 3]
    for age, wants in ((30, False), (70, True), (-1000, False)):
        monkeypatch.setattr(time, "time_ns", lambda age=age: wall + age * 10**9)
        with stepwell.open(path, save=SaveAfter(60)) as store:
            assert store.should_save(9) == wants
            assert store.steps() == [0, 3]


def test_policies_are_values():
    assert SaveEvery(3) | SaveAt([2, 1]) == SaveAt([1, 2]) | SaveEvery(3) != SaveEvery(3)
    assert len({SaveEvery(3), SaveEvery(3), SaveAfter(3), SaveWhenIdle(3)}) == 3
    policy = SaveEvery(3) | SaveAfter(1.5) | SaveWhenIdle() | SaveAt([1]) | SaveOnPreemption()
    assert repr(policy) == ("SaveEvery(3) | SaveAfter(1.5) | SaveWhenIdle(0) | SaveAt([1]) | "
                            "SaveOnPreemption((SIGTERM,))")
    assert SaveOnPreemption([signal.SIGUSR1]).signals == (signal.SIGUSR1,)


@pytest.mark.parametrize(("make", "why"), [
    (lambda: SaveEvery(0), "SaveEvery takes an int, at least 1"),
    (lambda: SaveEvery(1.5), "SaveEvery takes an int, not 1.5"),
    (lambda: SaveAfter(-1), "SaveAfter's duration must be 0 seconds or more"),
    (lambda: SaveAfter(float("nan")), "must be 0 seconds or more"),
    (lambda: SaveWhenIdle("soon"), "SaveWhenIdle takes seconds or a timedelta"),
    (lambda: SaveAt([-1]), "a step must be 0"),
    (lambda: SaveAt("12"), "a step must be an int"),
    (lambda: SaveOnPreemption(()), "SaveOnPreemption takes signals"),
    (lambda: SaveOnPreemption(["SIGTERM"]), "SaveOnPreemption takes signals"),
    (lambda: stepwell.policy.SavePolicy(), "is made of others"),
])
def test_mistakes(make, why):
    with pytest.raises(stepwell.InvalidArgumentError, match=why):
        make()


def test_what_open_refuses(path):
    with pytest.raises(stepwell.InvalidArgumentError, match="save must be a save policy"):
        stepwell.open(path, save=stepwell.policy.LatestN(1))
    with pytest.raises(stepwell.InvalidArgumentError, match="keep must be a policy"):
        stepwell.open(path, keep=SaveEvery(1))
    with pytest.raises(stepwell.InvalidArgumentError, match="needs mode='a'"):
        stepwell.open(path, mode="r", save=SaveEvery(1))
    with pytest.raises(stepwell.InvalidArgumentError, match="cannot handle SIGKILL"):
        stepwell.open(path, save=SaveOnPreemption([signal.SIGKILL]))
    errors = []

    def in_thread() -> None:
        try:
            stepwell.open(path, save=SaveOnPreemption())
        except stepwell.InvalidArgumentError as error:
            errors.append(str(error))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert "only the main thread" in errors[0]
    with stepwell.open(path) as store:  # it was closed again
        store.save(1, 1).result()
    with stepwell.open(path, mode="r") as store:
        with pytest.raises(stepwell.PermissionDeniedError):
            store.should_save(1)


# ---- signals ----

LOOP = """
import logging, os, signal, sys, time, numpy as np, stepwell
from stepwell.policy import SaveEvery, SaveOnPreemption
logging.basicConfig(format="%(message)s", stream=sys.stdout)
STATE = np.arange(200_000)
with stepwell.open(sys.argv[1], save=SaveEvery(1000) | SaveOnPreemption()) as store:
    state, start = store.load_or({"x": STATE * 0, "n": 0})
    for step in range(start, 1_000_000):
        state = {"x": STATE + step, "n": step}
        time.sleep(0.001)
        if step == start + 20:
            print("ready", flush=True)
        if store.should_save(step):
            store.save(step, state)
        if store.preempted:
            break
print("left at", step, flush=True)
"""


def test_a_loop_saves_at_sigterm_and_leaves(start_python, path):
    newest = -1
    for _ in range(2):  # and goes on from there
        process = start_python(LOOP, path)
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        lines = out.splitlines()
        last = int(lines[-1].removeprefix("left at "))
        assert last > newest
        assert lines[0] == f"{path}: preempted by SIGTERM"
        assert lines[1] == f"{path}: step {last} is saved because of a preemption"
        assert lines[2] == (f"{path}: SIGTERM came while the store was open and has not ended the "
                            "process: end it now")
        with stepwell.open(path, mode="r") as store:
            assert store.latest == last
            assert store.load(last, "n") == last and store.load(last, "x")[7] == 7 + last
        newest = last


def test_a_kill_after_the_signal_leaves_a_whole_step(start_python, path):
    """The grace period ends while the step is being saved."""
    for _ in range(in_a_storm(2)):
        process = start_python(LOOP.replace("200_000", "4_000_000"), path)
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert "preempted by SIGTERM" in process.stdout.readline()
        process.kill()
        process.wait()
        with stepwell.open(path) as store:
            for step in store.steps():
                assert store.load(step, "n") == step
                assert store.load(step, "x")[-1] == 4_000_000 - 1 + step
            assert store.verify().ok


@pytest.fixture
def calls():
    """A handler of SIGUSR1, and its calls."""
    made: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: made.append(number))
    yield made
    signal.signal(signal.SIGUSR1, before)


def test_handlers_that_were_there_are_called_and_put_back(path, tmp_path, calls):
    ours = signal.getsignal(signal.SIGUSR1)
    policy = SaveOnPreemption([signal.SIGUSR1, signal.SIGUSR2])
    with stepwell.open(path, save=policy) as store:
        with stepwell.open(tmp_path / "other", save=policy) as other:  # two at once
            assert not store.preempted
            assert not store.should_save(1)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert calls == [signal.SIGUSR1]
            for each in (store, other):
                assert not each.preempted  # the loop has not asked since
                assert each.should_save(1) and each.preempted
                assert each.should_save(2)  # until one is saved
                each.save(2, 1)
                assert not each.should_save(3) and each.preempted
    assert signal.getsignal(signal.SIGUSR1) is ours
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    with stepwell.open(path) as store:
        assert not store.preempted and store.should_save(3)


def test_stores_closed_out_of_order_pass_signals_on(path, tmp_path, calls):
    policy = SaveOnPreemption([signal.SIGUSR1])
    ours = signal.getsignal(signal.SIGUSR1)
    first = stepwell.open(path, save=policy)
    second = stepwell.open(tmp_path / "other", save=policy)
    first.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [signal.SIGUSR1] and second.should_save(1)
    second.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert len(calls) == 2
    signal.signal(signal.SIGUSR1, ours)


def test_forked_children_end_as_ever(run_python, path):
    status, out, err = run_python("""
import multiprocessing, os, signal, sys, time, stepwell
reading, writing = os.pipe()
def sleep():
    os.write(writing, b"x")
    time.sleep(120)
with stepwell.open(sys.argv[1], save=stepwell.policy.SaveOnPreemption()) as store:
    child = multiprocessing.get_context("fork").Process(target=sleep)
    child.start()
    os.read(reading, 1)  # a signal in the instant of the fork is the parent's handler's
    child.terminate()
    child.join()
    print(child.exitcode == -signal.SIGTERM, store.should_save(1))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(120)
""", path)
    assert (status, out) == (-signal.SIGTERM, "True False\n"), err


@pytest.mark.parametrize("disks", ["shared", "local"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=["own", "jax"])
def test_all_processes_save_the_step_that_one_was_told_of(tmp_path, disks, number):
    roots = [tmp_path / (f"machine_{each}" if disks == "local" else "") / "store"
             for each in range(2)]
    for root in roots:
        root.parent.mkdir(exist_ok=True)
    said = run(roots, [["open", {"disks": disks, "signals": [int(number)]}],
                       ["loop", {"signal": int(number), "process": 1, "at": 5}], ["close", {}]])
    ends = [each.gave(1) for each in said]
    assert ends[0] == ends[1]
    assert ends[0][0] >= 5 and ends[0][1] == [ends[0][0]]
