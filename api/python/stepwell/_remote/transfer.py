# SPDX-License-Identifier: Apache-2.0
"""Helpers of pushes and pulls: many transfers at once, errors with their context, and a directory
of their own meanwhile. Modules that only they need are imported when they run: `import stepwell` is
to be quick."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from .._runtime import durable
from .._runtime.arguments import Progress
from ..errors import (Error, InvalidArgumentError, LockedError, NoSpaceError,
                      PermissionDeniedError, StorageError)

_WORKERS = 16
# Passwords of URLs, tokens in their place, and what signs or opens them, as Azure's and presigned
# ones have it. (In abfss://container@account the part before the @ names a container.)
_SECRETS = re.compile(r"(?P<user>://[^/?#\s:@]*:|https?://(?=[^/?#\s:@]+@))[^/?#\s@]+(?=@)|"
                      r"(?P<name>[?&](?:code|[^=&\s]*(?:sig|token|key|secret|password|credential)"
                      r"[^=&\s]*)=)[^&\s]+", re.IGNORECASE)
_REFUSALS = ("UnauthenticatedError", "PermissionDeniedError")
LOCK_NAME = "lock"  # in a directory of `claimed`


class Transfers:
    """Work on several objects at a time; the first error, or Ctrl-C, ends all of it."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._progress = progress
        self._total = total_bytes
        self._done = 0

    def check(self) -> None:
        if self._stop.is_set():
            raise Error("stopped, as another transfer failed")

    def add(self, size: int) -> None:
        self.check()
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._total)

    def run(self, work: Callable[[str], None], keys: Iterable[str]) -> None:
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

        with ThreadPoolExecutor(_WORKERS, "stepwell-transfer") as pool:
            futures = [pool.submit(work, key) for key in keys]
            try:
                for each in wait(futures, return_when=FIRST_EXCEPTION).done:
                    each.result()
            except BaseException:
                self._stop.set()
                for each in futures:
                    each.cancel()
                raise


@contextmanager
def with_context(what: str) -> Iterator[None]:
    """Errors of the libraries as ours, with what was being done."""
    try:
        yield
    except (Error, KeyboardInterrupt):
        raise
    except Exception as error:
        name = type(error).__name__
        said = without_secrets(_in_one_line(str(error)))
        # A traceback shows the cause's words.
        cause = error if without_secrets(str(error)) == str(error) else None
        text = f"{what}: {name}: {said}"
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise NoSpaceError(text) from cause
        if "169.254.169.254" in said:  # where a cloud's machines ask for theirs
            text += ("; no credentials were given, and this machine has none: storage_options or "
                     "the environment give them")
        elif isinstance(error, PermissionError) or name in _REFUSALS:
            raise PermissionDeniedError(f"{text}; look at the credentials, in storage_options or "
                                        "the environment, and at their rights") from cause
        elif name == "UnknownConfigurationKeyError":
            raise InvalidArgumentError(f"{text} (in storage_options)") from cause
        elif not isinstance(error, OSError):
            text += "; are the address and the region right? The same call again goes on"
        raise StorageError(text) from cause


def without_secrets(text: str) -> str:
    """For messages: what is secret of the URLs in a text is *** there."""
    return _SECRETS.sub(lambda match: f"{match['user'] or match['name']}***", text)


def _in_one_line(message: str) -> str:
    """obstore's messages end in pages of debug output, with the operating system's words."""
    head, _, debug = message.partition("\n\nDebug source:")
    words = re.findall(r'message: "([^"]*)"', debug)
    shown = " ".join(head.split())
    return f"{shown} ({words[-1]})" if words and words[-1] not in shown else shown


def work_path(store: str, what: str, work_dir: str | os.PathLike[str] | None) -> str:
    path = store if work_dir is None else os.path.join(
        os.path.abspath(os.fsdecode(work_dir)), os.path.basename(store))
    return f"{path}.{what}"


def sweep_work(path: str) -> None:
    """Removes what other pushes that were killed left beside `path`, a work_path of a push."""
    folder, name = os.path.split(path)
    prefix = name[:name.rindex(".push-") + len(".push-")]
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(LockedError, StorageError), claimed(entry.path, False):
                    pass  # its end removes it


@contextmanager
def claimed(path: str, keep_on_error: bool) -> Iterator[str]:
    """A directory that is ours alone while this runs; what a process that died left is in it. It
    goes at the end, unless `keep_on_error` and an error leaves data in it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if os.path.islink(path) or os.lstat(path).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it is there, and not ours")
        lock = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                       | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise LockedError(f"{path} was in use a moment ago: the same has just ended") from None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; work_dir says where else to put what is on "
                           "its way") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{path} is in use: the same is under way already") from None
        if os.fstat(lock).st_nlink == 0:
            raise LockedError(f"{path} was in use a moment ago: the same has just ended")
        try:
            yield path
        except BaseException:
            if not keep_on_error or not _has_data(path):
                durable.remove_tree(path)
            raise
        durable.remove_tree(path)
    finally:
        os.close(lock)


def _has_data(path: str) -> bool:
    """Returns true if a claimed directory has bytes that the same work, called again, goes on
    from."""
    return any(os.lstat(os.path.join(above, name)).st_size > 0
               for above, _, names in os.walk(path) for name in names if name != LOCK_NAME)


def digest_of(*parts: str) -> str:
    import hashlib

    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
