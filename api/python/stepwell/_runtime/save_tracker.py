# SPDX-License-Identifier: Apache-2.0
"""A store's saves with unread outcomes, and the stand-in for the engine of a closed store."""

from __future__ import annotations

from typing import Any

from ..errors import Error
from .service import Operation

_RAISED_MAX = 1000  # texts of errors that are not raised again


class Tracked:
    """What a handle and its store share. The store does not know the handle, which knows it: a
    store that is simply dropped goes at once, not with the next garbage collection."""

    def __init__(self, handle: Operation) -> None:
        self.handle = handle
        self.reported = False


class Pending:
    """Saves under way, and errors of theirs that were raised.

    It has no lock: a signal handler that closes the store may interrupt it anywhere. `list.remove`
    is atomic, and the caller that removes a save reports its error."""

    def __init__(self) -> None:
        self._saves: list[Tracked] = []
        self._raised: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._saves)

    def add(self, save: Tracked) -> None:
        self._saves.append(save)

    def wait(self) -> None:
        for save in list(self._saves):
            save.handle.wait(None)

    def take_error(self) -> BaseException | None:
        """The first unreported error of a finished save. Later errors with the same text (a frozen
        store) count as reported with it."""
        first: BaseException | None = None
        for save in list(self._saves):
            if not save.handle.done():
                continue
            try:
                self._saves.remove(save)
            except ValueError:
                continue
            error = save.handle.error()
            if error is None or save.reported:
                continue
            save.reported = True
            if first is None and str(error) not in self._raised:
                first = error
                if len(self._raised) >= _RAISED_MAX:
                    self._raised.clear()
                self._raised.add(str(error))
        return first

    def is_known(self, error: Error) -> bool:
        """Whether an error of close only repeats one that was raised before."""
        text = str(error)
        return any(text in known or known in text for known in self._raised)


class Closed:
    """Replaces the engine of a closed store. Its threads and memory are freed then, also while
    references to the Store or to its handles remain."""

    def __init__(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise Error(f"{self._path!r} is closed")
