# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own that need not import JAX, Orbax and Flax again.

A process (this file, run as a program) has imported these and used nothing of them. It forks for
each program, which then has its own environment, arguments, output, `__main__`, exit handlers and
exit status, as if it were started anew. What reads the environment while it is imported has read
that of the tests; $XLA_FLAGS is read later.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any


class Child:
    """The part of subprocess.Popen that tests use; stdout and stderr are pipes."""

    def __init__(self, server: socket.socket, program: str | Path, arguments: tuple[object, ...],
                 environment: dict[str, str], folder: Path | None) -> None:
        ends = [os.pipe() for _ in range(3)]
        request = {"arguments": [str(argument) for argument in arguments], "folder": str(
            folder or Path.cwd()), "environment": environment,
                   "file" if isinstance(program, Path) else "source": str(program)}
        try:
            socket.send_fds(server, [json.dumps(request).encode()], [end for _, end in ends])
        finally:
            for _, end in ends:
                os.close(end)
        self.stdout, self.stderr, self._status = (
            open(end, encoding="utf-8") for end, _ in ends)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, if it has ended: the pipe of the status has something then."""
        if self.returncode is None and _readable(self._status, 0):
            self.returncode = int(self._status.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not _readable(self._status, timeout):
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        status = self.poll()
        assert status is not None
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        if self._status.closed:  # for the second time
            return "", ""
        err: list[str] = []
        expired = threading.Timer(timeout, self.kill) if timeout else None
        reader = threading.Thread(target=lambda: err.append(self.stderr.read()))
        reader.start()
        if expired is not None:
            expired.start()
        out = self.stdout.read()
        reader.join()
        self.wait()
        if expired is not None:
            expired.cancel()
        for file in (self.stdout, self.stderr, self._status):
            file.close()
        return out, err[0]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _readable(file: Any, timeout: float | None) -> bool:
    return bool(select.select([file], [], [], timeout)[0])


_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


def _end() -> None:
    """The process that forks ends when nobody can ask it."""
    assert _server is not None
    _server[0].close()
    _server[1].wait()


def start(program: str | Path, *arguments: object, folder: Path | None = None,
          environment: dict[str, str] | None = None) -> Child:
    """Starts a program, its source or its file; `environment`: beside that of this process."""
    global _server
    if _server is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _server = ours, subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        theirs.close()
        atexit.register(_end)
    return Child(_server[0], program, arguments,
                 {**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})}, folder)


def run(program: str | Path, *arguments: object, folder: Path | None = None,
        environment: dict[str, str] | None = None, timeout: float = 300.0) -> tuple[int, str, str]:
    """Runs it; (exit status, stdout, stderr)."""
    child = start(program, *arguments, folder=folder, environment=environment)
    out, err = child.communicate(timeout)
    return child.wait(), out, err


# ---- the process that forks ---------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Returns in each child, with what it is to run; exits when nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those between
    while True:
        message, ends, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not message:
            os._exit(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks, as it may have been used
            if os.fork() != 0:
                for end in ends:
                    os.close(end)
                continue
            # One between, which waits for the child and tells its pid and its status.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
        out, err, status = ends
        if child != 0:
            requests.close()
            os.close(out), os.close(err)
            os.write(status, f"{child}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(status, f"{code}\n".encode())
            os._exit(0)
        requests.close()
        os.dup2(out, 1), os.dup2(err, 2)
        for end in ends:
            os.close(end)
        request: dict[str, Any] = json.loads(message)
        return request


def _main() -> tuple[Any, dict[str, Any]]:
    import flax  # noqa: F401
    import jax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    from orbax.checkpoint import v1  # noqa: F401

    import stepwell  # noqa: F401

    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    file = request.get("file")
    sys.argv = [file or "-c", *request["arguments"]]
    sys.path[0] = os.path.dirname(file) if file else ""
    source = Path(file).read_text(encoding="utf-8") if file else request["source"]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=file) if file else None
    sys.modules["__main__"] = main
    return compile(source, file or "<string>", "exec"), main.__dict__


if __name__ == "__main__":
    exec(*_main())
