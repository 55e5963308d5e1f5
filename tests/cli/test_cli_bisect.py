# SPDX-License-Identifier: Apache-2.0
"""`stepwell bisect`: its commands, their statuses, and what is left behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import stepwell
from program import PROGRAM, document, error, ok, parsed_document, run
from stepwell._program.bisect import Signals

STEPS = range(0, 200, 10)


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "a run"
    with stepwell.open(path) as writer:
        for step in STEPS:
            writer.save(step, {"w": np.full(1000, step), "n": step})
    return path


@pytest.fixture(autouse=True)
def temporary(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """Where exports are made: nothing is left of them."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert not list(folder.iterdir())


def bisect(store: pathlib.Path, good: object, bad: object, *command: object,
           options: tuple[str, ...] = (), status: int = 0) -> dict[str, Any]:
    """The document. `status`: the program's."""
    result = run("bisect", "--json", *options, store, "--good", good, "--bad", bad, "--", *command)
    assert result.returncode == status, result
    return parsed_document(result.stdout)


def test_the_first_bad_step(store: pathlib.Path) -> None:
    for first_bad in (10, 70, 100, 190):
        shell = f'test "$STEPWELL_STEP" -lt {first_bad}'
        report = bisect(store, 0, 190, "sh", "-c", shell)
        assert (report["last_good"], report["first_bad"]) == (first_bad - 10, first_bad)
        assert report["skipped"] == [] and report["store"] == str(store)
        assert len(report["tries"]) <= 5
        assert all(each["verdict"] == ("good" if each["step"] < first_bad else "bad")
                   and each["status"] == (each["step"] >= first_bad) for each in report["tries"])


def test_a_good_step_above_the_bad_one(store: pathlib.Path) -> None:
    report = bisect(store, "latest", 20, "sh", "-c", "test {step} -ge 70")
    assert (report["last_good"], report["first_bad"]) == (70, 60)


def test_the_text(store: pathlib.Path) -> None:
    result = run("bisect", store, "--good", 0, "--bad", 40, "--", "sh", "-c",
                 "test {step} = 10 && exit 125; echo of the command; test {step} -lt 15")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout == (
        "of the command\n"
        "step 20: bad (status 1); 1 step left between 0 and 20\n"
        "step 10: skipped (status 125); 0 steps left between 0 and 20\n"
        "first bad step 20; last good step 0\n"
        "skipped between them: 10; one of these may be the first bad step\n")


def test_steps_next_to_each_other_need_no_command(store: pathlib.Path) -> None:
    assert ok("bisect", store, "--good", 10, "--bad", 20, "--", "false") == (
        "first bad step 20; last good step 10\n")


@pytest.mark.parametrize("status", [1, 3, 124, 126, 127])
def test_statuses_that_are_bad(store: pathlib.Path, status: int) -> None:
    report = bisect(store, 0, 20, "sh", "-c", f"exit {status}")
    assert report["first_bad"] == 10
    assert report["tries"] == [{"step": 10, "verdict": "bad", "status": status,
                                "why": f"status {status}"}]


@pytest.mark.parametrize(("shell", "said"), [
    ("exit 128", "status 128"), ("exit 255", "status 255"), ("kill -9 $$", "signal 9 (Killed)")])
def test_statuses_that_end_the_search(store: pathlib.Path, shell: str, said: str) -> None:
    report = bisect(store, 0, 190, "sh", "-c", shell, status=1)
    assert f"the command ended with {said} at step 100" in report["error"]["message"]
    result = run("bisect", store, "--good", 0, "--bad", 190, "--", "sh", "-c", shell)
    assert result.returncode == 1 and said in result.stderr and result.stdout == ""


def test_placeholders_and_the_environment(store: pathlib.Path, tmp_path: pathlib.Path,
                                          temporary: pathlib.Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_PATH", "of a bisect around this one")
    seen = tmp_path / "seen"
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        "variables = [os.environ.get('STEPWELL_' + name) for name in ('STEP', 'RUN', 'PATH')]\n"
        f"pathlib.Path({str(seen)!r}).write_text(json.dumps([sys.argv[1:], variables]))\n"
        "sys.exit(bool(variables[2]) and not pathlib.Path(variables[2], 'state').is_dir())\n")
    words = ["{step}", "-x", "--", "a {run}{step}", "{other}{}", ""]
    report = bisect(store, 0, 20, sys.executable, script, *words)
    assert report["tries"][0]["verdict"] == "good"
    assert json.loads(seen.read_text()) == [
        ["10", "-x", "--", f"a {store}10", "{other}{}", ""], ["10", str(store), None]]
    for arguments, options in ((["{path}"], ()), ([], ("--export", "orbax"))):
        report = bisect(store, 0, 20, sys.executable, script, *arguments, options=options)
        assert report["tries"][0]["verdict"] == "good"
        given, (step, _, path) = json.loads(seen.read_text())
        assert step == "10" and pathlib.Path(path).parents[1] == temporary
        assert given == [path for _ in arguments]


def test_what_the_command_prints_is_not_the_document(store: pathlib.Path) -> None:
    result = run("bisect", "--json", store, "--good", 0, "--bad", 20, "--", "echo", "of it")
    assert result.stderr == "of it\n" and result.stdout.startswith("{")


def test_an_export_is_what_orbax_reads(store: pathlib.Path) -> None:
    script = ("import sys, orbax.checkpoint as ocp; "
              "tree = ocp.PyTreeCheckpointer().restore(sys.argv[1] + '/state'); "
              "sys.exit(int(tree['n']) >= 10)")
    report = bisect(store, 0, 20, sys.executable, "-c", script, "{path}")
    assert report["tries"][0] == {"step": 10, "verdict": "bad", "status": 1, "why": "status 1"}


DELETES = """
import os, sys, stepwell
with stepwell.open(os.environ["STEPWELL_RUN"]) as store:
    if 50 in store:
        store.delete([step for step in store if 40 <= step <= 150])
sys.exit(int(os.environ["STEPWELL_STEP"]) >= 30)
"""


DELETE_ALL_BETWEEN = """
import os, stepwell
with stepwell.open(os.environ['STEPWELL_RUN']) as store:
    store.delete([step for step in store if 0 < step < 100])
"""


def test_deleted_steps_are_skipped(store: pathlib.Path) -> None:
    report = bisect(store, 0, 190, sys.executable, "-c", DELETES)
    assert (report["last_good"], report["first_bad"]) == (20, 30)
    (gone, *others) = report["tries"]
    assert (gone["step"], gone["verdict"]) == (100, "skipped")
    assert gone["why"] == "it was deleted while the command ran"
    tried = {each["step"]: each for each in others}
    for step in set(tried) & set(range(40, 160)):
        assert (tried[step]["verdict"], tried[step]["status"]) == ("skipped", None)
        assert tried[step]["why"] == "it is not there any more"
    assert set(tried) & set(range(40, 160))


def test_what_orbax_cannot_hold(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        for step in range(3):
            writer.save(step, {"z": 1j})
    said = error("bisect", tmp_path / "run", "--good", 0, "--bad", 2, "--", "true", "{path}",
                 status=2)
    assert "step 1: Orbax cannot hold state/z" in said and "from {run} itself" in said
    assert "unsupported" not in said


def test_many_steps_that_go_at_once_are_one_try(store: pathlib.Path) -> None:
    shell = (f'test {{step}} = 100 && {sys.executable} -c "{DELETE_ALL_BETWEEN}"; test {{step}} '
             "-lt 20")
    report = bisect(store, 0, 190, "sh", "-c", shell)
    assert [(each["step"], each["status"]) for each in report["tries"]] == [(100, 1), (50, None)]
    assert (report["last_good"], report["first_bad"]) == (0, 100)
    assert report["skipped"] == [*range(10, 100, 10)]


def test_a_store_that_goes_says_nothing_of_a_step(store: pathlib.Path) -> None:
    report = bisect(store, 0, 190, "sh", "-c", 'mv "{run}" "{run}.old"; exit 1', status=3)
    assert "is not there any more" in report["error"]["message"]


def test_what_is_wrong(store: pathlib.Path) -> None:
    def wrong(status: int, *arguments: object) -> str:
        return error("bisect", store, *arguments, status=status)

    assert "are both step 10" in wrong(2, "--good", 10, "--bad", 10, "--", "true")
    assert "step 11" in wrong(3, "--good", 11, "--bad", 20, "--", "true")
    assert "--good is required" in wrong(2, "--bad", 20, "--", "true")
    assert "CMD is required" in wrong(2, "--good", 0, "--bad", 20)
    assert "x" in wrong(2, "--good", "x", "--bad", 20, "--", "true")
    assert "none makes none" in wrong(2, "--good", 0, "--bad", 20, "--export", "none", "--",
                                      "true", "{path}")
    assert "one of none, orbax" in wrong(2, "--good", 0, "--bad", 20, "--export", "zip", "--",
                                         "true")
    assert "cannot be run: /no/such: No such file" in wrong(
        2, "--good", 0, "--bad", 190, "--", "/no/such")
    report = document("bisect", "--good", 0, "--bad", 190, store / "none", "true", status=3)
    assert report["error"]["code"] == "not_found"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_until_a_command_that_starts_is_known(number: signal.Signals) -> None:
    signals = Signals()
    before = signal.signal(number, signal.SIG_DFL)  # a shell may ignore it
    came_to_the_end = False
    try:
        with pytest.raises(KeyboardInterrupt), signals.raised(), signals.held():
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            came_to_the_end = True
        assert came_to_the_end and signal.getsignal(number) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt), Signals().raised():
            os.kill(os.getpid(), number)
            time.sleep(60)
        signal.signal(number, signal.SIG_IGN)  # as of a program in the background
        with Signals().raised():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


def test_signals_after_the_first_change_nothing() -> None:
    """So that what ends a command and removes an export is not cut off."""
    signals = Signals()
    removed = False
    with pytest.raises(KeyboardInterrupt), signals.raised():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            removed = True
    assert removed
    with pytest.raises(KeyboardInterrupt):
        signals.check()


def test_ctrl_c_while_a_command_starts(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch
                                       ) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    library = types.SimpleNamespace(Popen=Interrupted, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("stepwell._program.bisect.subprocess", library)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        text = error("bisect", store, "--good", 0, "--bad", 190, "--", "sleep", 1000, status=130)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted; --good 0 --bad 190 goes on from here" in text
    (process,) = started
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_by_a_signal(store: pathlib.Path, tmp_path: pathlib.Path, temporary: pathlib.Path,
                             number: signal.Signals) -> None:
    begun = tmp_path / "begun"
    shell = ('test "$STEPWELL_STEP" -ge 100 && exit 1; echo $$ > "$0.new" && mv "$0.new" "$0"; '
             "exec sleep 1000")
    command = [PROGRAM, "bisect", store, "--good", "0", "--bad", "190", "--export", "orbax", "--",
               "sh", "-c", shell, begun]
    process = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a shell may ignore it
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.01)
    assert len(list(temporary.iterdir())) == 1  # the export
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "step 100: bad (status 1); 9 steps left between 0 and 100\n"
    assert err == "stepwell: interrupted; --good 0 --bad 100 goes on from here\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)
