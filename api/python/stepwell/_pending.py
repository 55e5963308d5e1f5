# SPDX-License-Identifier: Apache-2.0
"""The saves of a store whose outcome nobody has asked for yet, and what stands for a closed one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import Error

if TYPE_CHECKING:
    from . import _stepwell
    from ._turn import GroupHandle

_RAISED_MAX = 1000  # texts of errors that are not raised again


class Tracked:
    """What a handle and its store share. The store does not know the handle, which knows it: a
    store that is simply dropped goes at once, not with the next garbage collection."""

    def __init__(self, handle: _stepwell.Handle | GroupHandle) -> None:
        self.handle = handle
        self.reported = False


class Pending:
    """Saves under way, and errors of theirs that were raised.

    Without a lock: a signal's handler that closes the store may interrupt it anywhere. A save is
    whose who removes it from the list, which is one instant."""

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
        """The first error of a finished save that nobody has seen; those after it with the same
        text (a frozen store) count as seen with it."""
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
    """In place of the engine of a store that is closed: its threads and memory are gone then,
    however long somebody keeps the Store, or a handle that knows it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise Error(f"{self._path!r} is closed")
