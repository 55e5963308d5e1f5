# SPDX-License-Identifier: Apache-2.0
"""`stepwell bisect`: the step from which on a command fails."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .. import _store
from .._runtime import durable
from .._text import counted, printable
from ..errors import Error, InvalidArgumentError, StepNotFoundError
from .place import Place
from .turning import Search, Verdict

_SKIP, _STOP = 125, 128  # exit statuses of the command, as `git bisect run` takes them
_LISTED_MAX = 20  # steps in a line
_STDERR = 2
_PLACEHOLDER = re.compile(r"\{(step|run|path)\}")


class Try(NamedTuple):
    """One step that was looked at. `status` is the exit status of the command; None: it was not
    run."""

    step: int
    verdict: Verdict
    status: int | None
    why: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.verdict.value} ({self.why})"


class _Stopped(Error):
    """The command ended in a way that says nothing of this step, nor of others."""


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """`given.good` and `given.bad` are numbers, -1 the newest."""
    if not given.word:
        raise InvalidArgumentError("a command is required: stepwell bisect STORE --good A --bad B "
                                   "-- CMD")
    named = {name for word in given.word for name in _PLACEHOLDER.findall(word)}
    if given.export == "none" and "path" in named:
        raise InvalidArgumentError("{path} is an export, and --export none makes none")
    exports = given.export == "orbax" or "path" in named
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        good, bad = (int(store[number].step) for number in (given.good, given.bad))
        search = Search(_between(store, good, bad))
        tries: list[Try] = []
        signals = Signals()
        command = _Command(store, given.word, exports, given.json, signals)
        try:
            with signals.raised():
                while (step := search.next()) is not None:
                    signals.check()
                    tries.append(command.try_step(step))
                    search.tell(step, tries[-1].verdict)
                    if tries[-1].status is None:  # others may have gone with it, even thousands
                        search.skip_all_but(store.steps())
                    if not given.json:
                        print(f"{tries[-1]}; {counted(search.left, 'step')} left between "
                              f"{search.last_good} and {search.first_bad}", flush=True)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; --good {search.last_good} --bad "
                                    f"{search.first_bad} goes on from here") from None
        path = store.path
    return {"store": path, "good": good, "bad": bad, "last_good": search.last_good,
            "first_bad": search.first_bad, "skipped": search.skipped,
            "tries": [{**each._asdict(), "verdict": each.verdict.value} for each in tries],
            }, _result(search)


def _between(store: _store.Store, good: int, bad: int) -> list[int]:
    """The steps from the good one to the bad one, which may be the lower."""
    if good == bad:
        raise InvalidArgumentError(f"--good and --bad are both step {good}")
    steps = [step for step in store.steps() if min(good, bad) <= step <= max(good, bad)]
    return steps if good < bad else steps[::-1]


def _result(search: Search) -> str:
    text = f"first bad step {search.first_bad}; last good step {search.last_good}\n"
    skipped = search.skipped
    if skipped:
        shown = ", ".join(map(str, skipped[:_LISTED_MAX]))
        more = f" and {len(skipped) - _LISTED_MAX:,} more" if len(skipped) > _LISTED_MAX else ""
        text += (f"skipped between them: {shown}{more}; one of these may be the first bad step\n")
    return text


class Signals:
    """Ctrl-C and SIGTERM, of which both end the search. What a program that starts this one has
    ignored stays ignored. Those after the first change nothing: what ends already takes a moment,
    and would leave the command or an export behind if it were interrupted."""

    def __init__(self) -> None:
        self._held = self._came = False

    def receive(self, number: int, frame: object) -> None:
        again, self._came = self._came, True
        if not (self._held or again):
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if one came, also where something has swallowed that."""
        if self._came:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """They raise KeyboardInterrupt in the block."""
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            for each, handler in before.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(each, self.receive)
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """They wait for the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.check()


class _Command:
    """The command, which is run for one step after the other. `json`: standard output is for the
    document, so that what the command prints goes to standard error."""

    def __init__(self, store: _store.Store, words: list[str], exports: bool, json: bool,
                 signals: Signals) -> None:
        self._store, self._words, self._exports = store, words, exports
        self._json, self._signals = json, signals
        self._place = Place(store)

    def try_step(self, step: int) -> Try:
        try:
            with self._exported(step) as path:
                status = self._status(step, path)
        except StepNotFoundError:
            return Try(step, Verdict.SKIPPED, None, "it is not there any more")
        self._place.check()  # without it the command may have failed for that
        if status >= _STOP or status < 0:
            raise _Stopped(f"the command ended with {_ended(status)} at step {step}, which says "
                           "nothing of the step: 0 is good, 125 skips the step, 1 to 127 are bad")
        if status == 0:
            return Try(step, Verdict.GOOD, status, "status 0")
        if not self._exports and step not in self._store:  # perhaps the command found it gone
            return Try(step, Verdict.SKIPPED, status, "it was deleted while the command ran")
        return Try(step, Verdict.SKIPPED if status == _SKIP else Verdict.BAD, status,
                   f"status {status}")

    @contextlib.contextmanager
    def _exported(self, step: int) -> Iterator[str | None]:
        """The step as an Orbax checkpoint, while this lasts; None where none is wanted."""
        if step not in self._store:
            raise StepNotFoundError(f"step {step} was deleted")
        if not self._exports:
            yield None
            return
        with durable.scratch("stepwell-bisect-") as folder:
            path = os.path.join(folder, str(step))
            self._export(step, path)
            yield path

    def _export(self, step: int, path: str) -> None:
        try:
            self._store.export(step, path, leaves="numpy")
        except InvalidArgumentError as error:
            why = str(error).partition("; on_unsupported")[0]  # bisect has no such option
            raise InvalidArgumentError(f"step {step}: {why}; without {{path}} and --export the "
                                       "command can read it from {run} itself") from None

    def _status(self, step: int, path: str | None) -> int:
        values = {"step": str(step), "run": self._store.path}
        if path is not None:
            values["path"] = path
        words = [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in self._words]
        process: subprocess.Popen[bytes] | None = None
        try:
            with self._signals.held():  # else a command might be started and not be known
                process = subprocess.Popen(words, env=_environment(values),
                                           stdout=_STDERR if self._json else None)
            return process.wait()
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"the command cannot be run: {printable(words[0])}: "
                                       f"{getattr(error, 'strerror', None) or error}") from None
        except KeyboardInterrupt:
            if process is not None:
                _end(process)
            raise


def _ended(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    return f"signal {-status} ({signal.strsignal(-status) or 'unknown'})"


def _environment(values: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "STEPWELL_PATH"}
    return {**environment, **{f"STEPWELL_{name.upper()}": value for name, value in values.items()}}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that Ctrl-C has not ended: it is given a second."""
    process.terminate()
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
