# SPDX-License-Identifier: Apache-2.0
"""A trainer, and a follower that holds trees; either is killed again and again.

    PYTHONPATH=<build>/python python follower_kills.py DIR FIRST:END [TREES]

A seed is a run. Its trainer saves steps with delta=True, replaces and deletes some, rolls back, and
has retention. Its follower brings a tree of NumPy arrays and one of jax arrays to each step that it
is given. Again and again one of the two gets SIGKILL and is started anew; the follower then begins
with a load, or with what it has saved itself. Each tree that the follower had has the digest of its
step that the trainer took of its own arrays. A run ends when there were TREES (80).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import stepwell

DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.int8, ml_dtypes.float8_e4m3fn]
SHAPE = (512, 512)
CHANGES = [0, 0, 0.001, 0.01, 0.05, 1]  # shares of a leaf's elements
WARM_UPDATES = 4  # of a process, before its memory is looked at
HANGS_AFTER_S = 120
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def note(path: pathlib.Path, **values: Any) -> None:
    """Adds a line, which outlives the process."""
    with open(path, "ab", buffering=0) as file:
        file.write(json.dumps(values).encode() + b"\n")


def notes(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


# ---- the trainer ---------------------------------------------------------------------------------


def first_tree(rng: np.random.Generator) -> dict[str, Any]:
    arrays = {f"w{i}": rng.integers(0, 100, SHAPE).astype(dtype) for i, dtype in enumerate(DTYPES)}
    return {"arrays": arrays, "n": 0, "text": "begin", "scalar": np.float32(0)}


def change(rng: np.random.Generator, tree: dict[str, Any]) -> None:
    """Another tree, of which much is the same."""
    for array in tree["arrays"].values():
        where = rng.random(SHAPE) < rng.choice(CHANGES)
        array[where] = rng.integers(0, 100, int(where.sum())).astype(array.dtype)
    tree["n"] = int(rng.integers(1 << 60))
    tree["text"] = "abc" * int(rng.integers(3))
    tree["scalar"] = np.float32(rng.integers(3))


def train(folder: pathlib.Path, seed: int, life: int) -> None:
    rng, chance = np.random.default_rng([seed, life]), random.Random(f"{seed} {life}")
    keep = stepwell.policy.LatestN(6) | stepwell.policy.EveryN(20)
    with stepwell.open(folder / "store", delta=True, keep=keep) as store:
        tree, step = store.load_or(first_tree(rng))
        while True:
            change(rng, tree)
            what = chance.random()
            if what < 0.15:
                step = max(store.steps(), default=0)  # which is replaced
            elif what < 0.2 and store.steps():
                store.wait()
                store.rollback(step := chance.choice(store.steps()))
            elif what < 0.3 and len(store.steps()) > 1:
                store.wait()
                store.delete(chance.choice(store.steps()[-3:]))
            note(folder / "saved", step=step, digest=stepwell.digest(tree))
            handle = store.save(step, tree, if_exists="replace")
            if chance.random() < 0.5:
                handle.result()
            time.sleep(chance.uniform(0, 0.05))
            step += 1


# ---- the follower --------------------------------------------------------------------------------


class Held:
    """A tree, and the step that it holds."""

    def __init__(self, kind: str, load: Callable[[stepwell.Store, int], Any]) -> None:
        self._kind, self._load = kind, load
        self.tree: Any = None
        self.step: int | None = None

    def bring(self, store: stepwell.Store, step: int) -> dict[str, Any]:
        """StepNotFoundError: the step has gone, so there is another one."""
        how = "update"
        try:
            if self.step is None:
                raise stepwell.StepNotFoundError("nothing is held")
            self.tree = store.update(self.tree, since=self.step, to=step)
        except stepwell.StepNotFoundError:
            how = "load"
            self.tree = self._load(store, step)
        self.step = step
        return {"kind": self._kind, "how": how, "step": step, "digest": stepwell.digest(self.tree)}


class Memory:
    """How far this process was above what it has once it is warm."""

    def __init__(self) -> None:
        self._updates, self._before = 0, 0

    @property
    def is_warm(self) -> bool:
        return self._updates >= WARM_UPDATES

    def grew_bytes(self) -> int | None:
        """None: it is not warm yet."""
        self._updates += 1
        if not self.is_warm:
            return None
        if self._updates == WARM_UPDATES:
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
            self._before = self._peak()
        return self._peak() - self._before

    def _peak(self) -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) << 10


def resume(store: stepwell.Store, own: stepwell.Store, held: Held) -> None:
    """Begins with the tree that a life before has saved, if that is what the store has."""
    with contextlib.suppress(stepwell.StepNotFoundError):
        saved = own[-1]
        step = store[saved.metadata["step"]].step
        tree = own.load(saved.step)
        if store.verify(step, against=tree).ok:
            held.tree, held.step = tree, step


def follow(folder: pathlib.Path, seed: int, life: int) -> None:
    import jax
    import jax.numpy as jnp

    def as_jax(store: stepwell.Store, step: int) -> Any:
        like = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray)
                            else leaf, store.load(step))
        return store.load(step, like=like)

    chance = random.Random(f"{seed} {life}")
    numpy, others = Held("numpy", stepwell.Store.load), Held("jax", as_jax)
    memory = Memory()
    keep = stepwell.policy.LatestN(1)
    with stepwell.open(folder / "store", mode="r") as store, \
            stepwell.open(folder / "own", keep=keep) as own:
        if chance.random() < 0.7:
            resume(store, own, numpy)
        for step in store.follow():
            for held in (numpy, others):
                with contextlib.suppress(stepwell.StepNotFoundError):
                    note(folder / "held", **held.bring(store, step), grew=memory.grew_bytes())
            if numpy.step == step and (not memory.is_warm or chance.random() < 0.3):
                own.save(max(own, default=0) + 1, numpy.tree, metadata={"step": step}).result()


# ---- what kills them -----------------------------------------------------------------------------


class Side:
    """A process in one role, in one life after the other."""

    def __init__(self, folder: pathlib.Path, seed: int, role: str, made: str) -> None:
        self._folder, self._seed, self.role = folder, seed, role
        self._made = folder / made  # grows with what it does
        self.life = 0
        self.start()

    def start(self) -> None:
        self.life += 1
        with open(self._folder / f"{self.role}.err", "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, self.role, str(self._folder), str(self._seed),
                 str(self.life)], stderr=errors, env={**os.environ, "JAX_PLATFORMS": "cpu"})

    def check(self) -> None:
        status = self._process.poll()
        assert status is None, (self.role, self._seed, status,
                                (self._folder / f"{self.role}.err").read_text()[-5000:])

    def done(self) -> int:
        return self._made.read_bytes().count(b"\n") if self._made.exists() else 0

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def both(folder: pathlib.Path, seed: int) -> Iterator[list[Side]]:
    sides: list[Side] = []
    try:
        stepwell.open(folder / "store").close()
        for role, made in (("train", "saved"), ("follow", "held")):
            sides.append(Side(folder, seed, role, made))
        yield sides
    finally:
        for side in sides:
            side.kill()


@dataclass
class Found:
    trees: int
    steps: int
    updates: int
    kills: int
    grew_bytes: int  # of the follower, beyond what it has once it is warm


def run(folder: pathlib.Path, seed: int, trees: int) -> Found:
    """Raises AssertionError for a tree that is not its step."""
    chance = random.Random(seed)
    kills = 0
    with both(folder, seed) as sides:
        while sides[1].done() < trees:
            side = chance.choice(sides)
            until = side.done() + chance.randint(1, 20)
            began = time.monotonic()
            while side.done() < until and sides[1].done() < trees:
                for each in sides:
                    each.check()
                assert time.monotonic() - began < HANGS_AFTER_S, (seed, side.role, "hangs")
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.06))
            side.kill()
            kills += 1
            side.start()
    return checked(folder, seed, kills)


def checked(folder: pathlib.Path, seed: int, kills: int) -> Found:
    wanted: dict[int, set[str]] = {}
    for each in notes(folder / "saved"):
        wanted.setdefault(each["step"], set()).add(each["digest"])
    held = notes(folder / "held")
    for each in held:
        assert each["digest"] in wanted[each["step"]], (seed, each)
    with stepwell.open(folder / "store", mode="r") as store:
        report = store.verify()
        assert report.ok, (seed, report.problems)
        for step in store.steps():
            assert store.digest(step) in wanted[step], (seed, step)
    return Found(len(held), len({each["step"] for each in held}),
                 sum(each["how"] == "update" for each in held), kills,
                 max((each["grew"] for each in held if each["grew"] is not None), default=0))


def main() -> None:
    if sys.argv[1] in ("train", "follow"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # dies with the one that kills
        role = {"train": train, "follow": follow}[sys.argv[1]]
        role(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return
    folder = pathlib.Path(sys.argv[1])
    first, _, end = sys.argv[2].partition(":")
    for seed in range(int(first), int(end)):
        where = folder / str(seed)
        where.mkdir(parents=True)
        found = run(where, seed, int(sys.argv[3]) if len(sys.argv) > 3 else 80)
        print(json.dumps({**vars(found), "grew_mib": -(-found.grew_bytes >> 20)}), flush=True)
        shutil.rmtree(where)


if __name__ == "__main__":
    main()
