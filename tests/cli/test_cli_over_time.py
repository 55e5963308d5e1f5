# SPDX-License-Identifier: Apache-2.0
"""`stepwell top` and `stepwell ls --wide`, against the store."""

import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import stepwell
from program import PROGRAM, document, error, ok, run
from stepwell._display import format_bytes
from stepwell._program.looks import Looks
from stepwell._program.over_steps import duration

EVIL = "<b>\x1b[31m\u202e!"


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run") as writer:
        for step in range(0, 50, 5):
            odd = float("nan") if step == 10 else 1 - step
            writer.save(step, {"w": np.arange(1000 * (1 + step)), "same": np.ones(10_000)},
                        metrics={"loss": 1 / (1 + step), "odd": odd, EVIL: step, "note": "text",
                                 "flag": True, "list": [1]}).result()
        writer.pin(5, 10)
        writer.taint(45, EVIL)
        writer.verify(20)
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def rows(text: str) -> dict[str, str]:
    """The names and texts of a picture."""
    return {name: value for name, value in re.findall(r"(?m)^(\S+) +(.+)$", text)}


def test_a_look_is_what_the_store_says(store: pathlib.Path) -> None:
    look = document("top", store)
    with stepwell.open(store, mode="r") as reader:
        views = {step: reader[step] for step in reader}
        stats = reader.stats()
    assert (look["steps"], look["first"], look["pinned"]) == (10, 0, [5, 10])
    assert look["tainted"] == {"45": EVIL} and look["last_verified"] == 20
    latest = look["latest"]
    assert latest["step"] == 40 and latest["logical_bytes"] == views[40].nbytes
    assert latest["owned_bytes"] == views[40].owned_bytes
    assert 0 <= latest["age_s"] < time.time() - views[40].time.timestamp() + 1
    newest = look["newest"]
    assert newest["step"] == [*views]
    assert newest["time_s"] == pytest.approx([view.time.timestamp() for view in views.values()])
    assert newest["logical_bytes"] == [view.nbytes for view in views.values()]
    assert newest["owned_bytes"] == [view.owned_bytes for view in views.values()]
    assert newest["save_s"] == pytest.approx([view.duration_s for view in views.values()])
    assert all(seconds > 0 for seconds in newest["save_s"])
    seconds = newest["time_s"][-1] - newest["time_s"][0]
    rate = look["rate"]
    assert (rate["steps"], rate["seconds"]) == (9, pytest.approx(seconds))
    assert rate["steps_per_s"] == pytest.approx(9 / seconds)
    assert rate["owned_bytes_per_s"] == pytest.approx(sum(newest["owned_bytes"][1:]) / seconds)
    between = np.diff(newest["time_s"])
    assert rate["interval_median_s"] == pytest.approx(np.median(between))
    assert rate["interval_max_s"] == pytest.approx(between.max())
    assert sorted(look["metrics"]) == sorted(["loss", "odd", EVIL])
    assert look["metrics"]["loss"] == [1 / (1 + step) for step in range(0, 50, 5)]
    assert look["metrics"]["odd"][1:4] == [-4.0, "NaN", -14.0]
    assert look["space"] == stats["space"]
    assert 0 < look["disk"]["free_bytes"] < look["disk"]["total_bytes"]
    assert look["writer"] == {"running": False, "process": None}
    assert look["readers"] == [] and look["problems"] == []


def test_one_picture(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = document("top", store)
    text = ok("top", store)
    assert text == "".join([line.rstrip() + "\n" for line in text.splitlines()])
    assert not re.search(r"[^\S\n ]|\x1b|\u202e", text)
    shown = rows(text)
    assert shown["steps"] == "10 steps, from 0 on"
    size = format_bytes(look["latest"]["logical_bytes"])
    assert re.match(rf"step 40, .* ago, {size}, .* its own$", shown["newest"])
    took = look["newest"]["save_s"]
    assert shown["save"].endswith(
        f" {duration(took[-1])}, from {duration(min(took))} to {duration(max(took))}")
    assert shown["loss"] == "█▂▁▁▁▁▁▁▁▁ 0.0217391, from 0.0217391 to 1"
    assert shown["odd"].startswith("█▇ ▆▅▄▃▃▂▁ -44, from -44 to 1")
    assert shown[r"<b>\x1b[31m\u202e!"].endswith(" 45, from 0 to 45")
    assert shown["pinned"] == "5, 10"
    assert shown["tainted"] == r"45 (<b>\x1b[31m\u202e!)"
    assert shown["verified"] == "step 20 is the highest that was verified"
    assert shown["writer"] == "no process"
    assert f"{format_bytes(look['space']['live_bytes'])} live" in shown["space"]
    monkeypatch.setenv("COLUMNS", "72")
    narrow = ok("top", store)
    assert max(map(len, narrow.splitlines())) <= 72 and rows(narrow)["loss"] == shown["loss"]
    monkeypatch.setenv("COLUMNS", "10")
    tiny = ok("top", store)
    assert max(map(len, tiny.splitlines())) <= 10
    assert "run" + str(store) in re.sub(r"\s", "", tiny)
    monkeypatch.setenv("COLUMNS", "72")
    assert ok("top", store, "--once") and "note" not in shown and "reader" not in shown


def test_without_steps_and_with_one(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        look = document("top", tmp_path / "run")
        assert (look["steps"], look["latest"], look["rate"]) == (0, None, None)
        assert rows(ok("top", tmp_path / "run"))["steps"] == "0 steps"
        assert run("ls", tmp_path / "run", "--wide").stdout == ""
        writer.save(7, {"x": 1}, metrics={"m": float("inf")}).result()
        look = document("top", tmp_path / "run")
        assert (look["steps"], look["latest"]["step"], look["rate"]) == (1, 7, None)
        assert rows(ok("top", tmp_path / "run"))["m"] == "never finite"
        assert run("ls", tmp_path / "run", "--wide").stdout == ok("ls", tmp_path / "run")
        writer.taint(7, "it is the only one")
        assert document("top", tmp_path / "run")["latest"] is None
        assert "newest" not in rows(ok("top", tmp_path / "run"))


def test_a_writer_and_a_reader_that_is_behind(tmp_path: pathlib.Path) -> None:
    code = ("import sys, stepwell\n"
            "with stepwell.open(sys.argv[1], mode='r') as store:\n"
            "    view = store[0]\n"
            "    print('ready', flush=True)\n"
            "    sys.stdin.read()\n")
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(0, {"x": np.arange(100_000)}).result()
        with subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
            for step in (1, 2, 3):
                writer.save(step, {"x": np.arange(100_000) + step}).result()
            look = document("top", tmp_path / "run")
            assert look["writer"] == {"running": True, "process": os.getpid()}
            (pin,) = look["readers"]
            assert pin["behind"] == 3 and f"process {reader.pid}" in pin["text"]
            shown = rows(ok("top", tmp_path / "run"))
            assert shown["writer"] == f"process {os.getpid()}"
            assert shown["reader"].endswith(", 3 steps behind")
            assert reader.stdin is not None
            reader.stdin.close()
        assert document("top", tmp_path / "run")["readers"] == []


def test_steps_that_are_deleted_meanwhile_count_for_the_rate(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run", keep=stepwell.policy.LatestN(2)) as writer:
        with stepwell.open(tmp_path / "run", mode="r") as reader:
            looks = Looks(reader)
            for step in range(100):
                writer.save(step, {"x": step}).result()
                look = looks.look()
            assert look["steps"] == 2 and look["rate"]["steps"] == 59
            assert look["newest"]["step"] == [*range(40, 100)]
            writer.save(98, {"x": 0}, if_exists="replace").result()
            assert looks.look()["newest"]["step"] == [*range(41, 100), 98]


def test_a_pushed_run_does_not_know_all(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for step in (30, 40):
        ok("push", "--layout", "stepwell", store, step, tmp_path / "place")
    look = document("top", tmp_path / "place")
    assert look["latest"]["step"] == 40 and look["newest"]["step"] == [30, 40]
    assert look["writer"] is None and look["space"] is None
    shown = rows(ok("top", tmp_path / "place"))
    assert shown["loss"] == "█▁ 0.0243902, from 0.0243902 to 0.0322581"
    assert "writer" not in shown and "space" not in shown
    with stepwell.open(tmp_path / "place", mode="r") as reader:
        html = reader._repr_html_()
    assert "2, from 30 to 40" in html and "<td>space</td>" not in html


def test_bad_arguments(store: pathlib.Path) -> None:
    for interval in ("0", "-1", "inf", "often"):
        assert "--interval" in error("top", store, "--interval", interval, status=2)
    assert document("top", store / "none", status=3)["error"]["code"] == "not_found"
    assert "--wide is for stores" in error("ls", "s3://bucket/run", "--wide", status=2)


def test_without_rich(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert "pip install 'rich>=14'" in error("top", store, status=1)
    assert document("top", store)["steps"] == 10


def test_a_store_that_goes_meanwhile(store: pathlib.Path) -> None:
    with stepwell.open(store, mode="r") as reader:
        looks = Looks(reader)
        assert looks.look()["steps"] == 10
        store.rename(store.parent / "elsewhere")
        with pytest.raises(stepwell.StoreNotFoundError, match="is not there any more"):
            looks.look()


class Terminal:
    """`stepwell top` on a terminal of its own."""

    def __init__(self, *arguments: object, kind: str = "xterm") -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)], stdin=self.theirs, stdout=self.theirs,
            stderr=self.theirs, env={**os.environ, "TERM": kind, "PYTHONUTF8": "1"},
            # A shell may ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.text = ""

    def reads(self, pattern: str) -> None:
        """Reads until it has printed this since the last call."""
        shown = b""
        while not re.search(pattern, shown.decode(errors="replace")):
            assert select.select([self.ours], [], [], 60)[0], shown
            shown += os.read(self.ours, 1 << 16)

    def ends(self) -> int:
        """The exit status; what it prints is read until then."""
        rest = b""
        limit = time.monotonic() + 60
        while self.process.poll() is None:
            if time.monotonic() > limit:
                self.process.kill()
            if select.select([self.ours], [], [], 0.01)[0]:
                rest += os.read(self.ours, 1 << 16)
        while select.select([self.ours], [], [], 0)[0]:
            rest += os.read(self.ours, 1 << 16)
        self.text = rest.decode(errors="replace")
        after = termios.tcgetattr(self.theirs)
        assert after == self.before
        os.close(self.ours)
        os.close(self.theirs)
        return self.process.returncode


@pytest.fixture
def writer(tmp_path: pathlib.Path) -> Iterator[Any]:
    with stepwell.open(tmp_path / "live") as opened:
        opened.save(0, {"x": 0}).result()
        yield opened


@pytest.mark.parametrize("end", ["q", "ctrl-c", "sigterm"])
def test_live(writer: Any, end: str) -> None:
    terminal = Terminal("top", writer.path, "--interval", "0.05")
    terminal.reads("step 0, .* ago")
    writer.save(1, {"x": 1}).result()
    terminal.reads("step 1, .* ago")
    if end == "q":
        os.write(terminal.ours, b"xq")
    elif end == "ctrl-c":
        terminal.process.send_signal(signal.SIGINT)
    else:
        terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ends() == 0
    assert "\x1b[?1049l" in terminal.text and "Traceback" not in terminal.text


def test_live_where_the_store_goes(tmp_path: pathlib.Path) -> None:
    terminal = Terminal("top", tmp_path / "none")
    assert terminal.ends() == 3
    assert "none" in terminal.text and "Traceback" not in terminal.text


# ---- ls --wide ----------------------------------------------------------------------------------


def test_wide(store: pathlib.Path) -> None:
    plain = ok("ls", store)
    result = run("ls", store, "--wide")
    assert result.returncode == 0 and result.stdout.startswith(plain + "\n"), result
    lines = rows(result.stdout[len(plain):])
    with stepwell.open(store, mode="r") as reader:
        views = [reader[step] for step in reader]
    assert lines["size"] == (f"▁▂▃▃▄▅▆▆▇█ {format_bytes(views[-1].nbytes)}, from "
                             f"{format_bytes(views[0].nbytes)} to {format_bytes(views[-1].nbytes)}")
    owned = [view.owned_bytes for view in views]
    assert lines["own"].endswith(f"{format_bytes(owned[-1])}, from {format_bytes(min(owned))} to "
                                 f"{format_bytes(max(owned))}")
    # A datetime has microseconds, which round to another third digit now and then.
    between = np.diff([view._source.reader.time_ns / 1e9 for view in views])
    assert lines["interval"].endswith(f"to {duration(between.max())}")
    assert lines["loss"] == "█▂▁▁▁▁▁▁▁▁ 0.0217391, from 0.0217391 to 1"
    assert lines["odd"].startswith("█▇ ▆▅")
    assert list(lines) == ["size", "own", "save", "interval", r"<b>\x1b[31m\u202e!", "loss", "odd"]
    part = run("ls", store, "--wide", "--last", 2)
    assert rows(part.stdout)["loss"] == "█▁ 0.0217391, from 0.0217391 to 0.0243902"
    assert document("ls", store, "--wide") == document("ls", store)


def test_wide_names_and_many_metrics(tmp_path: pathlib.Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        for step in range(300):
            writer.save(step, {"x": 1}, metrics={"a" * 5000: step, "big": 10**400, **{
                f"m{i}": i for i in range(200)}})
    monkeypatch.setenv("COLUMNS", "90")
    lines = run("ls", tmp_path / "run", "--wide").stdout.partition("\n\n")[2].splitlines()
    assert len(lines) == 101 and lines[-1] == "… and 106 metrics"
    assert max(map(len, lines)) <= 90
    assert lines[4].split()[0] == "a" * 23 + "…"
    assert lines[5].split() == ["big", "never", "finite"]


def test_plain_bars_where_the_output_is_ascii(store: pathlib.Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    lines = rows(run("ls", store, "--wide").stdout)
    assert lines["loss"] == "#.________ 0.0217391, from 0.0217391 to 1"


def test_a_terminal_that_cannot_move_its_cursor(store: pathlib.Path) -> None:
    terminal = Terminal("top", store, "--interval", 1000, kind="dumb")
    terminal.reads(r"steps +10 steps, from 0 on[^\x1b]*writer")
    assert terminal.ends() == 0
