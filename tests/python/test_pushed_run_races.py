# SPDX-License-Identifier: Apache-2.0
"""Pushes, deletes and pulls of one run at the same time: between any two calls of one, the other
one begins, goes on to any of its own calls, and ends. At every instant each list that is there has
all that it names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pytest
import stepwell
from stepwell import _stepwell
from stepwell._remote import object_store, run, run_delete, run_push
from storm import in_a_storm

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Work = Callable[[Any], object]


def state(step: int) -> dict[str, Any]:
    # Two neighbours have something that no other step has.
    return {"base": np.random.default_rng(0).standard_normal((64, 256)),
            "pair": np.random.default_rng(100 + step // 2).standard_normal(200),
            "adapter": np.random.default_rng(step).standard_normal(300)}


class Place:
    """Objects in memory. Calls that a thread makes are counted for the work that it does, and may
    wait there."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._inner = object_store.open_object_store(obstore.store.MemoryStore(), "p", None)
        for key, data in objects.items():
            self._inner.put(key, data)
        self.url = "a place"
        self.broken: list[str] = []
        self.gate: Callable[[], None] = lambda: None

    def objects(self) -> dict[str, bytes]:
        return {key: bytes(self._inner.read(key, 0, size))
                for key, size in self._inner.list().items()}

    def _check(self) -> None:
        there = self.objects()
        for key, data in there.items():
            if key.startswith("steps/"):
                self.broken += [f"{key} lacks {each.name[:8]}"
                                for each in _stepwell.pushed_head(data).objects
                                if len(there.get(run.data_key(each.name), b"")) != each.size_bytes]

    def put(self, key: str, data: bytes) -> None:
        self.gate()
        self._inner.put(key, data)
        self._check()

    def put_file(self, key: str, path: str) -> None:
        self.put(key, Path(path).read_bytes())

    def delete(self, key: str) -> None:
        self.gate()
        self._inner.delete(key)
        self._check()

    def read(self, key: str, start: int, length: int) -> bytes:
        self.gate()
        return bytes(self._inner.read(key, start, length))

    def size(self, key: str) -> int | None:
        self.gate()
        return self._inner.size(key)

    def list(self) -> dict[str, int]:
        self.gate()
        return self._inner.list()


class View:
    """A place as one work sees it: its `at`-th call waits for `wait`."""

    def __init__(self, place: Place, at: int, wait: Callable[[], None]) -> None:
        self._place, self._at, self._wait = place, at, wait
        self._lock = threading.Lock()
        self.url = place.url
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            with self._lock:
                self.calls += 1
                now = self.calls == self._at
            if now:
                self._wait()
            return getattr(self._place, name)(*arguments)

        if name not in ("put", "put_file", "delete", "read", "size", "list"):
            raise AttributeError(name)
        return call


def interleaved(place: Place, first: Work, n: int, second: Work, m: int) -> tuple[bool, bool]:
    """`first` up to its call n, then `second` up to its call m, then all of `first`, then the rest
    of `second`. Whether each of them had so many calls."""
    at_n, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def wait() -> None:
        at_n.set()
        assert go_on.wait(60)

    one = View(place, n, wait)

    def work() -> None:
        try:
            first(one)
        except stepwell.Error:
            pass  # that there is an error is no harm: what is there counts
        except BaseException as error:
            errors.append(error)
        finally:
            at_n.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert at_n.wait(60)

    def finish() -> None:
        go_on.set()
        thread.join()

    two = View(place, m, finish)
    try:
        second(two)
    except stepwell.Error:
        pass
    finish()
    if errors:
        raise errors[0]
    return one.calls >= n, two.calls >= m


def all_of(objects: dict[str, bytes], first: Work, second: Work) -> Iterator[Place]:
    """Yields the place after one interleaving of three, or after each of them in a storm."""
    stride = 1 if in_a_storm(1) > 1 else 3
    n, more_n = 1, True
    while more_n:
        m, more_m = 1 + n % stride, True
        while more_m:
            place = Place(objects)
            more_n, more_m = interleaved(place, first, n, second, m)
            yield place
            m += stride
        n += 1


class Run:
    """Stores that have steps 1 to 5, and a run with some of them."""

    def __init__(self, folder: Path) -> None:
        self.stores = []
        for name in ("one", "two", "consumer"):
            store = stepwell.open(folder / name)
            for step in range(1, 6) if name != "consumer" else ():
                store.save(step, state(step)).result()
            self.stores.append(store)
        self.one, self.two, self.consumer = self.stores
        place = Place({})
        for step in (1, 2, 4):
            self.one.push(step, place, layout="stepwell")
        self.objects = place.objects()

    def push(self, store: stepwell.Store, step: int) -> Work:
        return lambda place: store.push(step, place, layout="stepwell", if_exists="replace")

    def delete(self, step: int | None, sweep: bool = False) -> Work:
        return lambda place: stepwell.delete_pushed(place, step, sweep=sweep)

    def pull(self, step: int) -> Work:
        def work(place: Any) -> None:
            self.consumer.pull(place, step, if_exists="replace")
            loaded = self.consumer.load(step)
            assert all(np.array_equal(loaded[key], state(step)[key]) for key in loaded)

        return work


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("races"))
    yield made
    for store in made.stores:
        store.close()


def pairs(made: Run) -> dict[str, tuple[Work, Work]]:
    return {
        "push beside delete": (made.push(made.one, 3), made.delete(2)),
        "delete beside push": (made.delete(2), made.push(made.one, 3)),
        "the deleted step again": (made.push(made.one, 2), made.delete(2)),
        "delete, and push of the deleted step": (made.delete(2), made.push(made.two, 2)),
        "two pushes": (made.push(made.one, 3), made.push(made.two, 5)),
        "two pushes of a step": (made.push(made.one, 3), made.push(made.two, 3)),
        "two deletes": (made.delete(2), made.delete(4)),
        "pull beside delete": (made.pull(2), made.delete(2)),
        "pull beside replacing": (made.pull(2), made.push(made.two, 2)),
        "push beside sweep": (made.push(made.one, 3), made.delete(None, sweep=True)),
    }


NAMES = ["push beside delete", "delete beside push", "the deleted step again",
         "delete, and push of the deleted step", "two pushes", "two pushes of a step",
         "two deletes", "pull beside delete", "pull beside replacing", "push beside sweep"]


@pytest.mark.parametrize("name", NAMES)
def test_every_interleaving(there: Run, name: str) -> None:
    count = 0
    for place in all_of(there.objects, *pairs(there)[name]):
        count += 1
        # A swept push may have put a list that lacks data; it takes it away again, and fails.
        assert not place.broken or name == "push beside sweep", (count, place.broken)
        place.broken.clear()
        place._check()
        assert not place.broken, count
        if "sweep" not in name:
            stepwell.delete_pushed(place, None)  # what is left of anything is named
        left = place.objects()
        assert not place.broken and not [key for key in left if key.startswith("pushing/")], count
        if count % 40 == 0:
            for each in stepwell.pushed_steps(place):
                there.pull(each.step)(place)
    assert count > 50


@pytest.mark.parametrize("bug", ["sources are not looked at again", "names say the content alone",
                                 "lists are read before markers", "no marker",
                                 "what a marker names is held"])
def test_the_interleavings_find_planted_bugs(there: Run, bug: str, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:
    name = "push beside delete"
    if bug == "sources are not looked at again":
        sources = run_push._Push._sources

        def without(self: Any, steps: list[int]) -> Any:
            found = sources(self, steps)
            found.headers.clear()
            return found

        monkeypatch.setattr(run_push._Push, "_sources", without)
    elif bug == "names say the content alone":
        name = "delete, and push of the deleted step"
        monkeypatch.setattr(run_push, "_salt_of", lambda marker: 0)
    elif bug == "lists are read before markers":
        def remove(bucket: Any) -> tuple[int, int]:
            unnamed = run.listing(bucket).data.keys()
            for step in run.listing(bucket).steps:
                unnamed -= run_delete._named_by(bucket, run.step_key(step))
            for marker in run.listing(bucket).markers:
                unnamed -= run_delete._named_by(bucket, run.marker_key(marker))
            for each in unnamed:
                bucket.delete(run.data_key(each))
            return 0, 0

        monkeypatch.setattr(run_delete, "remove_unnamed", remove)
    elif bug == "what a marker names is held":
        name = "the deleted step again"
        monkeypatch.setattr(run_push, "_salt_of", lambda marker: AnySalt(int(marker[:16], 16)))
    else:
        monkeypatch.setattr(run_push._stepwell, "push_marker", lambda objects: MARKER_OF_NOTHING)
    place = Place({})
    for step in (1, 2, 4):
        there.one.push(step, place, layout="stepwell")
    assert any(place.broken for place in all_of(place.objects(), *pairs(there)[name])), bug


class AnySalt(int):
    """Equal to any."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


MARKER_OF_NOTHING = _stepwell.push_marker([])
