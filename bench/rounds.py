# SPDX-License-Identifier: Apache-2.0
"""The rounds: limits first, then each contender in processes of its own, the order rotated."""

import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import limits
import machine
import plan
import report
import states

HERE = pathlib.Path(__file__).resolve().parent
SILENCE_MAX_SECONDS = 900  # of a worker that reports nothing


class Run:
    """One run of bench/run: `go` fills `report`."""

    def __init__(self, directory: pathlib.Path, contenders: list[str], themes: list[str],
                 rounds: int, counts: dict[str, int], python: dict[str, str],
                 patience_seconds: float, found: report.Report,
                 encoders: tuple[str, str] | None = None) -> None:
        self.directory = directory
        self.contenders = contenders
        self.themes = themes
        self.rounds = rounds
        self.counts = counts
        self.python = python  # interpreters of contenders that have their own
        self.patience_seconds = patience_seconds
        self.report = found
        self.encoders = encoders  # an interpreter with PyTorch, and where their checkouts are
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.slow: dict[str, set[str]] = {key: set() for key in contenders}
        size = counts["size_bytes"]
        state = states.make_state(size)
        self.state_bytes = states.total_bytes(state)
        self.state_arrays = len(states.leaves(state))
        self.sizes = limits.Sizes(
            state=self.state_bytes, part=states.total_bytes(state["params"]),
            leaves=counts["leaves"] * 4096, tiny=counts["tiny"] * 64,
            commit=states.total_bytes(states.make_state(1_000_000)))

    def go(self, after_round: Callable[[], None]) -> None:
        """Measures; what there is so far is in `report` whenever `after_round` is called, and when
        it is interrupted."""
        for round_ in range(self.rounds):
            self._progress(round_, "limits")
            found = limits.measure(self.directory, self.sizes, syncs=self.counts["commits"])
            found.update(limits.Memcpy(self.counts["size_bytes"]).measure())
            self.report.add_limits(found)
            shift = round_ % max(1, len(self.contenders))
            for key in self.contenders[shift:] + self.contenders[:shift]:
                if key not in self.missing:
                    self._contender(round_, key, found)
            after_round()
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)

    def _progress(self, round_: int, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[Kround {round_ + 1}/{self.rounds}: {text}", end="", file=sys.stderr,
                  flush=True)
        elif "," not in text:  # a log has a line a contender, not one a task
            print(f"round {round_ + 1}/{self.rounds}: {text}", file=sys.stderr, flush=True)

    def _contender(self, round_: int, key: str, found: dict[str, float]) -> None:
        self._progress(round_, key)
        directory = self.directory / key
        directory.mkdir()
        settings = {
            **self.counts, "contender": key, "round": round_, "limits": found,
            "encoders": self.encoders,
            "directory": str(directory), "steps_directory": str(self.directory / "steps"),
            "many_directory": str(self.directory / "many"),
        }
        for group in plan.processes(key, self.themes, round_, self.slow[key]):
            while group and key not in self.missing:
                group = self._process(round_, key, group, settings, found)
        shutil.rmtree(directory)
        if self.counts["settle"]:
            machine.settle(self.directory)

    def _process(self, round_: int, key: str, group: list[plan.Task], settings: dict[str, Any],
                 found: dict[str, float]) -> list[plan.Task]:
        """Runs tasks in one process; returns those that are left when it dies."""
        names = [{"name": task.name, "function": task.function} for task in group]
        tasks = {task.name: task for task in group}
        running, left, last = "", list(group), "it was killed or crashed"
        worker = Worker(self.python.get(key, sys.executable),
                        {**settings, "tasks": names, "keep": group[0].alone})
        try:
            for event in worker.events():
                if "hello" in event:
                    self.report.know(key, event["hello"])
                    self.versions[key] = event["hello"]["version"]
                elif "missing" in event:
                    self.missing[key] = event["missing"]
                elif "begin" in event:
                    running = event["begin"]
                    self._progress(round_, f"{key}, {running}")
                elif "row" in event:
                    self.report.add(key, event, found)
                elif "error" in event:
                    self.report.fail(key, tasks[event["task"]].rows, event["error"])
                elif "end" in event:
                    left.remove(tasks[event["end"]])
                    running = ""
                    if event["seconds"] > self.patience_seconds:
                        self.slow[key].add(event["end"])
                elif "silent" in event:
                    last = f"nothing in {SILENCE_MAX_SECONDS} s"
        finally:
            status, output = worker.stop()
        if not left or key in self.missing:
            return []
        # It died: what it was doing, or all when it did not even begin, has failed.
        failed = [tasks[running]] if running else left
        print(f"{key} ended with status {status}: {output[-2000:]}", file=sys.stderr)
        for task in failed:
            self.report.fail(key, task.rows, f"{last} (status {status})")
        return [task for task in left if task not in failed]


class Worker:
    """A process of worker.py, and what it reports."""

    def __init__(self, python: str, settings: dict[str, Any]) -> None:
        self._log = pathlib.Path(settings["directory"]) / "worker.log"
        self._reading, writing = os.pipe()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [python, str(HERE / "worker.py"), str(writing), json.dumps(settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[writing])
        os.close(writing)

    def events(self) -> Iterator[dict[str, Any]]:
        rest = b""
        while True:
            if not select.select([self._reading], [], [], SILENCE_MAX_SECONDS)[0]:
                yield {"silent": True}
                return
            data = os.read(self._reading, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def stop(self) -> tuple[int, str]:
        """Its exit status, and what it printed. Kills it when it did not end by itself."""
        try:
            self._process.wait(timeout=30)
        except BaseException as error:  # Ctrl-C, too
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        os.close(self._reading)
        return self._process.returncode, self._log.read_text(errors="replace")
