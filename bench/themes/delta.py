# SPDX-License-Identifier: Apache-2.0
"""Steps of real trainings: bytes of a later step, beside the entropy of what changed and beside the
whole state through zstd; stall and time with differences, beside those without."""

import statistics
from typing import Any

import machine
import numcodecs
import numpy as np
import states
import stepwell
import trainings
from rows import TRAININGS
from themes import Job, Timed

STEPS = 5
RESTORES = 5  # of each, by turns


def run(job: Job) -> None:
    for kind in TRAININGS:
        size = job.size_bytes // 8  # the network that is trained is small
        steps = list(trainings.train(kind, size, job.seed, STEPS))
        total = states.total_bytes(steps[0])
        options = {}
        if job.make.key == "stepwell":
            options = {"delta": True, "codec": "blosc" if kind.startswith("adam-") else "auto"}
        user = job.contender(f"delta-{kind}", keep=STEPS, **options)
        saved = [user.save(step) for step in steps]
        written = [one.written for one in saved[1:] if one.written is not None]
        later = statistics.mean(written) if written else None
        job.emit(f"delta/{kind}-written", later, total)
        if job.make.key != "stepwell":
            continue
        if later is not None:
            job.emit(f"delta/{kind}-zstd", later, _zstd_bytes(steps[-1]))
        changed, entropy = _changes(steps)
        job.emit(f"delta/{kind}-changed", changed, total)
        if later is not None:
            job.emit(f"delta/{kind}-entropy", later, entropy)
        plain = job.contender(f"delta-{kind}-plain", keep=STEPS, codec=options["codec"])
        whole = [plain.save(step) for step in steps]
        for row, of in (("stall", "stall"), ("durable", "durable")):
            medians = (statistics.median(getattr(one, of) for one in each[1:])
                       for each in (saved, whole))
            job.emit(f"delta/{kind}-{row}", *medians)
        seconds: list[list[float]] = [[], []]
        for turn in range(RESTORES):
            for which, one in sorted(enumerate((user, plain)), reverse=bool(turn % 2)):
                machine.drop_cached(one.directory)
                machine.warm_memory(2 * total)
                with Timed() as timed:
                    restored = one.restore(None)
                states.expect_equal(restored, steps[-1])
                del restored
                seconds[which].append(timed.seconds)
        job.emit(f"delta/{kind}-restore", *map(statistics.median, seconds))
        job.emit(f"delta/{kind}-left", *_left(user.writer()))


def _left(store: stepwell.Store) -> tuple[int, int]:
    """Bytes on the disk once all steps but the newest are deleted, without what is reserved, and
    bytes of that step."""
    newest = store.latest
    for step in store.steps():
        if step != newest:
            store.delete(step)
    store.reclaim()
    space = store.stats()["space"]
    return space["total_bytes"] - space["reserved_bytes"], store[newest].stored_bytes


def _zstd_bytes(step: Any) -> int:
    """Returns the bytes of the whole state, each array compressed at level 1."""
    zstd = numcodecs.Zstd(level=1)
    return sum(len(zstd.encode(leaf.reshape(-1).view(np.uint8))) for leaf in states.leaves(step))


def _changes(steps: list[Any]) -> tuple[float, float]:
    """Returns, of a later step, the bytes of the elements that changed, and those of the entropy of
    which elements they are and of their differences as integers."""
    changed_bytes = entropy = 0.0
    for before, after in zip(steps, steps[1:], strict=False):
        for old, new in zip(states.leaves(before), states.leaves(after), strict=True):
            bits = {2: np.int16, 4: np.int32}[old.dtype.itemsize]
            a, b = (_ordered(leaf.reshape(-1).view(bits)) for leaf in (old, new))
            differs = a != b
            share = differs.mean()
            changed_bytes += share * old.nbytes
            if 0 < share < 1:
                entropy -= (share * np.log2(share) + (1 - share) * np.log2(1 - share)) * a.size / 8
            _, counts = np.unique((b - a)[differs], return_counts=True)
            entropy -= float((counts * np.log2(counts / max(counts.sum(), 1))).sum()) / 8
    return changed_bytes / (len(steps) - 1), entropy / (len(steps) - 1)


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats whose bits these are."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
