# SPDX-License-Identifier: Apache-2.0
"""The follower of the theme publish, a process: follower.py STORE COUNT. Loads the newest step,
then brings its arrays to each of the next COUNT steps, and reports each as a line of JSON."""

import json
import sys
import time
from typing import Any

import stepwell
from counters import PeakMemory


def main() -> None:
    path, count = sys.argv[1], int(sys.argv[2])
    with stepwell.open(path, mode="r") as store:
        held: Any = store.latest
        tree = store.load(held)
        follower = store.follow(start=held)
        _tell(step=held)
        for _ in range(count):
            with PeakMemory() as peak:
                step = next(follower)
                seen = time.monotonic()
                tree = store.update(tree, since=held, to=step)
                applied = time.monotonic()
            held = step
            _tell(step=step, seen=seen, applied=applied, peak=peak.bytes,
                  read=store.stats()["last_load"]["bytes_read"], digest=str(stepwell.digest(tree)))


def _tell(**told: Any) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
