# SPDX-License-Identifier: Apache-2.0
"""Gives a library's own tests the facades instead of the library.

A test names what it uses by many paths, also by private ones. So its imports are answered with
stand-ins for modules, whose attributes are the library's, but for what has a public name that the
facade has, too: that is the facade's. Only the modules of the tests see stand-ins; the library, on
which the facades stand, stays as it is.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

# The facade of each library's public module.
TWINS = {
    "orbax.checkpoint": "stepwell.compat.orbax",
    "orbax.checkpoint.experimental.v1": "stepwell.compat.orbax_v1",
    "flax.training.checkpoints": "stepwell.compat.flax",
    "equinox": "stepwell.compat.equinox",
}
_PLAIN = (str, bytes, int, float, bool, tuple, list, dict, set, frozenset, type(None), type(...))


class Swap:
    """Replaces objects of the library by others."""

    def __init__(self, twins: Mapping[str, str]) -> None:
        self._libraries = tuple(f"{name.partition('.')[0]}." for name in twins)
        self._ours: dict[int, tuple[Any, Any]] = {}  # by the library's object, which stays alive
        self._stand_ins: dict[str, types.ModuleType] = {}
        for theirs, ours in twins.items():
            self._pair(importlib.import_module(theirs), importlib.import_module(ours), set())

    def _pair(self, theirs: Any, ours: Any, seen: set[str]) -> None:
        if theirs.__name__ in seen:
            return
        seen.add(theirs.__name__)
        for name in dir(theirs):
            found, twin = getattr(theirs, name), getattr(ours, name, None)
            if name.startswith("_") or twin is None or twin is found:
                continue
            if isinstance(found, types.ModuleType):
                if self._is_theirs(found.__name__):
                    self._pair(found, twin, seen)
            elif not isinstance(found, _PLAIN) and self._is_theirs(
                    str(getattr(found, "__module__", type(found).__module__))):
                self._ours.setdefault(id(found), (found, twin))

    def _is_theirs(self, module: str) -> bool:
        return f"{module}.".startswith(self._libraries)

    @property
    def names(self) -> list[str]:
        """Lists the swapped names, for a log."""
        return sorted(f"{each.__module__}.{getattr(each, '__qualname__', each)}"
                      for each, _ in self._ours.values())

    def answer(self, found: Any) -> Any:
        """Returns the object that a test gets for an object of the library."""
        if isinstance(found, _StandIn):
            return found
        if isinstance(found, types.ModuleType):
            if not self._is_theirs(found.__name__):
                return found
            return self._stand_ins.setdefault(found.__name__, _StandIn(self, found))
        pair = self._ours.get(id(found))
        return found if pair is None else pair[1]

    def question(self, value: Any) -> Any:
        """The library's object again, for what `answer` gave."""
        return next((theirs for theirs, ours in self._ours.values() if ours is value), value)

    def imported(self, name: str, globals_: Any = None, locals_: Any = None,
                 fromlist: Sequence[str] | None = (), level: int = 0) -> Any:
        """`__import__` of a test."""
        return self.answer(builtins.__import__(name, globals_, locals_, fromlist or (), level))


class _StandIn(types.ModuleType):
    """Stands for a module. What is set is set there, as mocks do it."""

    def __init__(self, swap: Swap, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        object.__setattr__(self, "_stand_in", (swap, module))

    def __getattribute__(self, name: str) -> Any:
        swap, module = object.__getattribute__(self, "_stand_in")
        if name == "__dict__":
            return {key: swap.answer(value) for key, value in vars(module).items()}
        return swap.answer(getattr(module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        swap, module = object.__getattribute__(self, "_stand_in")
        setattr(module, name, swap.question(value))

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_stand_in")[1], name)

    def __dir__(self) -> list[str]:
        return dir(object.__getattribute__(self, "_stand_in")[1])


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, swap: Swap) -> None:
        self._loader = loader
        self._swap = swap

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._swap.imported}
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, swap: Swap, modules: re.Pattern[str]) -> None:
        self._swap = swap
        self._modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not self._modules.search(name):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
                    spec.loader = _Loader(spec.loader, self._swap)
                return spec
        return None


def install(twins: Mapping[str, str], modules: str) -> Swap:
    """From now on modules whose names match `modules` are answered so."""
    swap = Swap(twins)
    finder = _Finder(swap, re.compile(modules))
    for name in [each for each in sys.modules if finder._modules.search(each)]:
        del sys.modules[name]  # of helpers that the library's own `__init__` imported
    sys.meta_path.insert(0, finder)
    return swap
