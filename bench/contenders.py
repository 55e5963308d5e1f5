# SPDX-License-Identifier: Apache-2.0
"""Stepwell and Orbax behind one face: save (stall, done), restore, restore of a part."""

import pathlib
import shutil
import time
from typing import Any, NamedTuple

import machine


class Saved(NamedTuple):
    stall: float  # seconds until save() gave control back
    done: float  # seconds until it said that the checkpoint is there
    synced: float  # seconds until it survives a power cut
    cpu: float  # core-seconds of this process


class Contender:
    """One way to checkpoint; each object has a directory of its own."""

    name = ""
    durable = False  # whether "done" means that it survives a power cut

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.step = 0

    def begin(self, state: Any) -> Any:
        """Starts a save; returns what `finish` takes."""
        raise NotImplementedError

    def finish(self, pending: Any) -> None:
        raise NotImplementedError

    def restore(self, like: Any) -> Any:
        """The newest checkpoint; `like` is a tree of arrays, or None for NumPy arrays."""
        raise NotImplementedError

    def save(self, state: Any) -> Saved:
        self.step += 1
        cpu = time.process_time()
        start = time.perf_counter()
        pending = self.begin(state)
        stall = time.perf_counter() - start
        self.finish(pending)
        done = time.perf_counter() - start
        cpu = time.process_time() - cpu
        synced = done
        if not self.durable:
            machine.sync(self.directory)
            synced = time.perf_counter() - start
        self.tidy()
        return Saved(stall, done, synced, cpu)

    def tidy(self) -> None:
        """Removes all but the newest checkpoint."""

    def close(self) -> None:
        pass


class Stepwell(Contender):
    name = "Stepwell"
    durable = True

    def __init__(self, directory: pathlib.Path, **options: Any) -> None:
        super().__init__(directory)
        import stepwell

        self._stepwell = stepwell
        self._store = stepwell.open(directory / "store", keep=stepwell.policy.LatestN(1), **options)

    def begin(self, state: Any) -> Any:
        return self._store.save(self.step, state)

    def finish(self, pending: Any) -> None:
        pending.result()

    def restore(self, like: Any) -> Any:
        # Through a new reader, as after a restart; opening counts.
        with self._stepwell.open(self.directory / "store", mode="r") as store:
            return store.load() if like is None else store.load(like=like)

    def read(self) -> Any:
        """The store opened for reading."""
        return self._stepwell.open(self.directory / "store", mode="r")

    def stats(self) -> dict[str, Any]:
        return dict(self._store.stats())

    def close(self) -> None:
        self._store.close()


class _Orbax(Contender):
    def _path(self, step: int) -> pathlib.Path:
        return self.directory / str(step)

    def tidy(self) -> None:
        shutil.rmtree(self._path(self.step - 1), ignore_errors=True)


class OrbaxV1(_Orbax):
    name = "Orbax v1"

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory)
        from orbax.checkpoint import v1

        self._v1 = v1

    def begin(self, state: Any) -> Any:
        save = getattr(self._v1, "save_async", None) or self._v1.save_pytree_async
        return save(self._path(self.step), state)

    def finish(self, pending: Any) -> None:
        pending.result()

    def restore(self, like: Any) -> Any:
        load = getattr(self._v1, "load", None) or self._v1.load_pytree
        return load(self._path(self.step), like)


class OrbaxV0(_Orbax):
    name = "Orbax v0"

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory)
        import orbax.checkpoint as ocp

        self._checkpointer = ocp.StandardCheckpointer()

    def begin(self, state: Any) -> Any:
        self._checkpointer.save(self._path(self.step), state)

    def finish(self, pending: Any) -> None:
        self._checkpointer.wait_until_finished()

    def restore(self, like: Any) -> Any:
        return self._checkpointer.restore(self._path(self.step), like)

    def close(self) -> None:
        self._checkpointer.close()


def available(orbax: bool) -> tuple[list[type[Contender]], dict[str, str]]:
    """The contenders that can be imported, and why the others cannot."""
    found: list[type[Contender]] = []
    missing: dict[str, str] = {}
    wanted: list[tuple[type[Contender], str]] = [(Stepwell, "stepwell")]
    if orbax:
        wanted += [(OrbaxV1, "orbax.checkpoint"), (OrbaxV0, "orbax.checkpoint")]
    for contender, module in wanted:
        try:
            __import__(module)
            found.append(contender)
        except ImportError as error:
            missing[contender.name] = str(error)
    return found, missing
