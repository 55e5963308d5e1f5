# SPDX-License-Identifier: Apache-2.0
"""DCP with Stepwell's writer and reader beside its own, FileSystemWriter(sync_files=True), which
does not sync its directories: compare.py [--size GB] [--rounds N] [--dir PATH]. Medians of
interleaved rounds; the first round is not counted. Loads come from the page cache."""

import argparse
import pathlib
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import stepwell
import torch
import torch.distributed.checkpoint as dcp
from stepwell.compat.torch import StepwellReader, StepwellWriter


def states(size_gb: float) -> dict[str, dict[str, Any]]:
    """24 large tensors; and 2,000 of 4 KiB with as many numbers."""
    count = int(size_gb * 1e9 / 4 / 24)
    return {"large": {f"w{number}": torch.rand(count) for number in range(24)},
            "small": {f"w{number}": {"t": torch.rand(1024), "n": number} for number in range(2000)}}


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(folder: pathlib.Path, state: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    with stepwell.open(folder / "store", keep=stepwell.policy.LatestN(1)) as store:
        for step in range(rounds + 1):
            files = folder / str(step)
            work = {
                "save, Stepwell": lambda: dcp.save(
                    state, storage_writer=StepwellWriter(store, step)),
                "save, DCP": lambda: dcp.save(
                    state, storage_writer=dcp.FileSystemWriter(files, sync_files=True)),
                "load, Stepwell": lambda: dcp.load(
                    state, storage_reader=StepwellReader(store, step)),
                "load, DCP": lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(files))}
            for name, each in work.items():
                taken.setdefault(name, []).append(seconds(each))
            shutil.rmtree(files)
    return {name: times[1:] for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=0.8, help="GB of the large tensors")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=str(pathlib.Path(__file__).parent))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*torch.distributed.*")
    print("| | Stepwell | DCP's own, synced | Stepwell / DCP |\n| --- | --- | --- | --- |")
    for name, state in states(options.size).items():
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="compare-") as folder:
            taken = measure(pathlib.Path(folder), state, options.rounds)
        for what in ("save", "load"):
            ours, theirs = taken[f"{what}, Stepwell"], taken[f"{what}, DCP"]
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            print(f"| {what}, {name} tensors | {statistics.median(ours) * 1e3:,.0f} ms | "
                  f"{statistics.median(theirs) * 1e3:,.0f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    main()
