# SPDX-License-Identifier: Apache-2.0
"""Checks by every door that a directory holds what a program's model says; in a process of its own,
which is forked from one that has imported everything."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from calls import Model, Program, same
from places import Value, Wrong

TIMEOUT_S = 60.0  # of one check: it takes a fraction of a second
CLOSE_S = 20.0
CHECKS_MAX = 300  # of one process: Orbax keeps something of each


def check(base: str, program: Program, models: list[Model], thorough: bool) -> list[str]:
    """Returns what is wrong. `thorough`: also checks that it can be used further."""
    try:
        found: dict[str, Value] = {place.name: place.read(base) for place in program.places}
        first = _compare(models, found, "read")
        written = {place.name: place.write(base) for place in program.places}
        # Who opens a store for writing may find a commit that readers do not see yet; none goes.
        if written != found and _compare(models, written, "opened for writing") < first:
            raise Wrong(f"opened for writing it has {written}, before {found}")
        again = {place.name: place.read(base) for place in program.places}
        if again != written:
            raise Wrong(f"after it was opened it has {again}, before {written}")
        if thorough:
            for place in program.places:
                if not isinstance(written[place.name], str):
                    place.use(base, written[place.name])
            left = [name for place in program.places for name in place.leftovers(base)]
            if left:
                raise Wrong(f"left for ever: {left}")
        scratch = os.listdir(tempfile.gettempdir())
        if scratch:
            raise Wrong(f"left in $TMPDIR: {scratch}")
    except Wrong as error:
        return [str(error)]
    except Exception:
        return [traceback.format_exc()]
    return []


def _compare(models: list[Model], found: dict[str, Value], how: str) -> int:
    """Which of the models it is."""
    for number, model in enumerate(models):
        if all(same(model[name], value) for name, value in found.items()):
            return number
    raise Wrong(f"{how}: {found}, but the model says " + " or ".join(map(str, models)))


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NEW_NAMESPACE, _BIND, _PRIVATE, _DETACH = 0x20000, 0x1000, 0x40000 | 0x4000, 2


def _let_go(libc: ctypes.CDLL) -> None:
    """Other tests' file systems, whose unmount this process's own mounts would undo."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        mounts = [line.split() for line in file]
    for words in mounts:
        kind, source = words[words.index("-") + 1:][:2]
        point = words[4].encode().decode("unicode_escape")
        used = (__file__, sys.prefix, tempfile.gettempdir())
        if not any(path.startswith(point) for path in used) and (
                source.startswith("/dev/loop") or kind.startswith("fuse")):
            libc.umount2(os.fsencode(point), _DETACH)


class _Boot:
    """Changes the boot id that this process sees, by which programs know whether the machine has
    started anew since. Needs root."""

    def __init__(self, path: str) -> None:
        with open(_BOOT_ID, encoding="ascii") as file:
            self._own = file.read()
        self._path = path
        self.set(anew=False)
        libc = ctypes.CDLL(None, use_errno=True)
        if (libc.unshare(_NEW_NAMESPACE) != 0
                or libc.mount(None, b"/", None, _PRIVATE, None) != 0
                or libc.mount(os.fsencode(path), _BOOT_ID.encode(), None, _BIND, None) != 0):
            raise OSError(ctypes.get_errno(), "a mount of this process's own (it needs root)")
        _let_go(libc)

    def set(self, anew: bool) -> None:
        with open(self._path, "w", encoding="ascii") as file:
            file.write("00000000-1111-2222-3333-444444444444\n" if anew else self._own)


class Checker:
    """Checks of one program, in another process. One that hangs or dies is a problem, too."""

    def __init__(self, program: Program, scratch: str) -> None:
        self._program = program
        self._scratch = scratch
        self._process: Any = None
        self._pipe: Any = None
        self._checks = 0

    def check(self, base: str, models: list[Model], thorough: bool = True,
              anew: bool = False) -> list[str]:
        """Returns what is wrong. `anew`: the machine has started again since."""
        if self._process is not None and self._checks >= CHECKS_MAX:
            self.close()
        if self._process is None:
            self._checks = 0
            self._pipe, theirs = multiprocessing.Pipe()
            self._process = fork(lambda: self._serve(theirs), self._scratch,
                                 self._scratch + ".checks")
            theirs.close()
        self._checks += 1
        self._pipe.send((base, models, thorough, anew))
        if not self._pipe.poll(TIMEOUT_S):
            os.kill(self._process, signal.SIGABRT)  # its stacks are printed
            self.close()
            return ["the check hangs"]
        try:
            return list(self._pipe.recv())
        except EOFError:
            status = self.close()
            return [f"the check's process ended with status {status}"]

    def _serve(self, pipe: multiprocessing.connection.Connection) -> None:
        self._pipe.close()  # the parent's end: else this one never ends
        boot = _Boot(self._scratch + ".boot")
        while True:
            try:
                base, models, thorough, anew = pipe.recv()
            except EOFError:
                return
            boot.set(anew)
            pipe.send(check(base, self._program, models, thorough))

    def close(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        self._pipe.close()
        status = waited(process, CLOSE_S)
        return -signal.SIGABRT if status is None else status


def fork(work: Callable[[], Any], scratch: str, output: str | None = None) -> int:
    """A child that runs `work` with $TMPDIR `scratch` and ends: status 0, or 1 after an exception.
    """
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        if output is not None:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
        faulthandler.enable()
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def waited(process: int, timeout: float) -> int | None:
    """Its exit status (negative: the signal), or None if it had to be killed."""
    ended = os.pidfd_open(process)
    try:
        in_time = bool(select.select([ended], [], [], timeout)[0])
    finally:
        os.close(ended)
    if not in_time:
        os.kill(process, signal.SIGABRT)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status if in_time else None
