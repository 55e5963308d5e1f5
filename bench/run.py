# SPDX-License-Identifier: Apache-2.0
"""The benchmark behind bench/run; see README.md here for the method and how to read the table."""

import argparse
import gc
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import contenders
import machine
import report
from states import abstract, advance, expect_equal, flat, make_leaves, make_state, ready, to_jax

GROUP_LIMITS = "Limits of this machine, in the same rounds"
GROUP_FIRST = "The very first save"
GROUP_SAVE = "Save the full state"
GROUP_RESTORE = "Restore the full state, cold"
GROUP_LEAVES = "Many small leaves"
GROUP_PART = "Load a part"
GROUP_COST = "Memory and start"


class Bench:
    def __init__(self, options: argparse.Namespace, directory: pathlib.Path) -> None:
        self.options = options
        self.directory = directory
        self.report = report.Report()
        self.found, self.missing = contenders.available(options.orbax)
        self.numpy_state = make_state(options.size_bytes)
        self.state_bytes = sum(leaf.nbytes for leaf in flat(self.numpy_state))
        self.jax_state = to_jax(self.numpy_state) if options.jax else None
        self.leaves = make_leaves(options.leaves)
        self.memcpy = machine.Memcpy(flat(self.numpy_state))
        self.cache = ""
        self.users: dict[str, contenders.Contender] = {}
        self.round = 0

    def user(self, make: type[contenders.Contender], what: str) -> contenders.Contender:
        """The contender's object for one kind of state, in a directory of its own."""
        key = f"{make.name} {what}".lower().replace(" ", "-")
        if key not in self.users:
            directory = self.directory / key
            directory.mkdir()
            self.users[key] = make(directory)
        return self.users[key]

    def progress(self, text: str) -> None:
        if not sys.stderr.isatty():
            return
        print(f"\r\033[Kround {self.round + 1}/{self.options.rounds}: {text}", end="",
              file=sys.stderr, flush=True)  # fmt: skip

    def warm_up(self) -> None:
        """The first saves, which pay for threads, imports and buffers."""
        for make in self.found:
            for kind, state in (("NumPy", self.numpy_state), ("jax", self.jax_state)):
                if state is not None:
                    self.progress(f"first save, {make.name}, {kind}")
                    machine.warm_memory(2 * self.state_bytes)
                    saved = self.user(make, f"full {kind}").save(state)
                    self.report.figure(GROUP_FIRST, f"{make.name}, {kind} arrays: stall", "ms").add(
                        saved.stall)  # fmt: skip
            self.user(make, "leaves").save(self.leaves)

    # ---- one round ----

    def run_round(self) -> None:
        # New contents each time, so that nobody can skip what has not changed.
        self.numpy_state, self.leaves = advance(self.numpy_state), advance(self.leaves)
        if self.jax_state is not None:
            self.jax_state = ready(advance(self.jax_state))
        gc.collect()
        self.progress("limits")
        self.measure_limits()
        shift = self.round % max(1, len(self.found))
        order = self.found[shift:] + self.found[:shift]
        for make in order:
            self.measure_full(make, "NumPy", self.numpy_state)
            if self.jax_state is not None:
                self.measure_full(make, "jax", self.jax_state)
            self.measure_leaves(make)
        if contenders.Stepwell in self.found:
            self.progress("a part")
            self.measure_part()
            self.measure_staging()
        self.measure_imports()

    def measure_limits(self) -> None:
        file = self.directory / "fio.dat"
        size = -(-self.state_bytes // 2**20) * 2**20
        machine.warm_memory(2 * self.state_bytes)
        self.write_limit = machine.disk_limit(file, "write", size)
        self.read_limit = machine.disk_limit(file, "read", size)
        file.unlink(missing_ok=True)
        self.copy_seconds = min(self.memcpy.seconds() for _ in range(2))
        for what, value in (
            ("fio write, O_DIRECT, new file, with fsync", self.write_limit),
            ("fio read, O_DIRECT", self.read_limit),
            ("memcpy of the state, one thread", self.state_bytes / self.copy_seconds),
        ):
            figure = self.report.figure(GROUP_LIMITS, what, "GB/s")
            if value:
                figure.add(value)

    def measure_full(self, make: type[contenders.Contender], kind: str, state: Any) -> None:
        self.progress(f"{make.name}, {kind}")
        user = self.user(make, f"full {kind}")
        own = make is contenders.Stepwell
        figure = self.report.figure
        what = f"{make.name}, {kind} arrays: "
        machine.warm_memory(2 * self.state_bytes)
        saved = user.save(state)
        synced = "durable" if make.durable else "done and synced"
        figure(GROUP_SAVE, what + synced, "GB/s", limit="fio write",
               bound="disk write" if own else "", budget="≥ 0.90" if own else "").add(
                   self.state_bytes / saved.synced, self.write_limit)  # fmt: skip
        if not make.durable:
            figure(GROUP_SAVE, what + "done, not durable", "GB/s", limit="fio write").add(
                self.state_bytes / saved.done, self.write_limit)
        budget, bound = "≤ 1.1", "memory bandwidth"
        if kind == "jax":
            budget, bound = "≤ 1 ms + 1 µs a leaf", "work a leaf"
        figure(GROUP_SAVE, what + "stall", "ms", limit="memcpy", budget=budget if own else "",
               bound=bound if own else "").add(saved.stall, self.copy_seconds)  # fmt: skip
        figure(GROUP_SAVE, what + "CPU", "core-s/GB", budget="≤ 0.2" if own else "",
               bound="copies, checksums" if own else "").add(
                   saved.cpu / (self.state_bytes / 1e9))  # fmt: skip
        targets = [("jax", abstract(state))] if kind == "jax" else []
        if kind == "NumPy":
            targets = [("NumPy", None if own else state)]
        for target, like in targets:
            self.cache = machine.drop_caches(user.directory)
            machine.warm_memory(2 * self.state_bytes)
            start = time.perf_counter()
            restored = ready(user.restore(like))
            seconds = time.perf_counter() - start
            figure(GROUP_RESTORE, f"{make.name}, into {target} arrays", "GB/s", limit="fio read",
                   bound="disk read" if own else "", budget="≥ 0.90" if own else "").add(
                       self.state_bytes / seconds, self.read_limit)  # fmt: skip
            if self.round == 0:
                expect_equal(make.name, restored, state)
            del restored

    def measure_leaves(self, make: type[contenders.Contender]) -> None:
        self.progress(f"{make.name}, {len(self.leaves)} leaves")
        user = self.user(make, "leaves")
        saved = user.save(self.leaves)
        own = make is contenders.Stepwell
        what = f"{make.name}, {len(self.leaves)} leaves of 4 KiB: "
        synced = "saved, durable" if make.durable else "saved and synced"
        figure = self.report.figure
        figure(GROUP_LEAVES, what + synced, "ms", budget="≤ 20 ms" if own else "",
               bound="work a leaf, one flush" if own else "").add(saved.synced)  # fmt: skip
        figure(GROUP_LEAVES, what + "stall", "ms", bound="work a leaf" if own else "").add(
            saved.stall)  # fmt: skip
        self.cache = machine.drop_caches(user.directory)
        machine.warm_memory(2**26)
        if own:
            with user.read() as store:  # type: ignore[attr-defined]
                start = time.perf_counter()
                restored = store.load()
                seconds = time.perf_counter() - start
        else:
            start = time.perf_counter()
            restored = user.restore(self.leaves)
            seconds = time.perf_counter() - start
        figure(GROUP_LEAVES, what + "restored, cold", "ms", budget="≤ 10 ms" if own else "",
               bound="index, work a leaf" if own else "").add(seconds)  # fmt: skip
        if self.round == 0:
            expect_equal(make.name, restored, self.leaves)

    def measure_part(self) -> None:
        user = self.user(contenders.Stepwell, "full NumPy")
        machine.drop_caches(user.directory)
        machine.warm_memory(2**28)
        figure = self.report.figure
        with user.read() as store:  # type: ignore[attr-defined]
            start = time.perf_counter()
            part = store.load(path="params/layer_3")
            first = time.perf_counter() - start
            counted = store.stats()["last_load"]
            size = sum(leaf.nbytes for leaf in flat(part))
            figure(GROUP_PART, "one layer of the parameters, first load", "ms",
                   bound="disk read, index").add(first)  # fmt: skip
            figure(GROUP_PART, "bytes read for it", "MB", limit="bytes of its chunks",
                   budget="≤ 1.05", bound="alignment of reads").add(
                       counted["bytes_read"], counted["bytes_needed"])  # fmt: skip
            figure(GROUP_PART, "bytes of its chunks", "MB", limit="bytes of its arrays",
                   bound="padding, checksums").add(counted["bytes_needed"], size)  # fmt: skip
            view = store[store.latest]["params/layer_4/kernel"]
            start = time.perf_counter()
            rows = view[0:16]
            figure(GROUP_PART, "16 rows of an array, store open", "ms",
                   budget="≤ 1 ms + one chunk", bound="read of one chunk").add(
                       time.perf_counter() - start)  # fmt: skip
            if self.round == 0:
                expect_equal("a slice", rows, self.numpy_state["params"]["layer_4"]["kernel"][:16])

    def measure_staging(self) -> None:
        """A state three times as large as the staging memory."""
        bound = max(20 << 20, self.state_bytes // 3 >> 20 << 20)  # the least is about 17 MiB
        state = self.numpy_state if bound * 3 <= self.state_bytes else make_state(3 * bound)
        directory = self.directory / "staging"
        directory.mkdir()
        user = contenders.Stepwell(directory, staging_bytes=bound)
        user.save(make_state(24 * 4096))
        with machine.PeakMemory() as peak:
            user.save(state)
        used = user.stats()["staging_bytes_max"]
        user.close()
        shutil.rmtree(directory)
        figure = self.report.figure
        figure(GROUP_COST, "staging memory, state 3 × as large", "MB", limit="its bound",
               budget="≤ 1", bound="the option staging_bytes").add(used, bound)  # fmt: skip
        if peak.bytes is not None:
            figure(GROUP_COST, "growth of the process during that save", "MB", limit="its bound",
                   bound="staging and fixed buffers").add(peak.bytes, bound)  # fmt: skip

    def measure_imports(self) -> None:
        modules = [("stepwell", "≤ 50 ms")] if contenders.Stepwell in self.found else []
        modules += [("orbax.checkpoint", "")] if self.options.orbax else []
        for module, budget in modules:
            code = (f"import numpy, time; t = time.perf_counter(); import {module}; "
                    "print(time.perf_counter() - t)")  # fmt: skip
            out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                 check=True)  # fmt: skip
            self.report.figure(GROUP_COST, f"import {module}, beyond NumPy", "ms", budget=budget,
                               bound="dynamic linking").add(float(out.stdout))  # fmt: skip


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("--size", type=float, default=0.8, metavar="GB", help="of the full state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--leaves", type=int, default=2000, help="how many small leaves")
    parser.add_argument("--dir", type=pathlib.Path, help="where to write; the disk to measure")
    parser.add_argument("--json", type=pathlib.Path, help="write every value there")
    parser.add_argument("--no-orbax", dest="orbax", action="store_false")
    parser.add_argument("--no-jax", dest="jax", action="store_false", help="NumPy arrays only")
    parser.add_argument("--smoke", action="store_true",
                        help="a few MB, one round, without Orbax: does it run?")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.smoke:
        options.size, options.rounds, options.leaves, options.orbax = 0.025, 1, 50, False
    options.size_bytes = int(options.size * 1e9)
    return options


def main() -> int:
    options = parse()
    logging.disable(logging.INFO)
    parent = options.dir or pathlib.Path.cwd()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="stepwell-bench-", dir=parent)).resolve()
    try:
        described = machine.describe(directory)
        bench = Bench(options, directory)
        try:
            bench.warm_up()
            for bench.round in range(options.rounds):
                bench.run_round()
        finally:
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
            for user in bench.users.values():
                user.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    settings = {
        "state": f"{bench.state_bytes / 1e9:.3f} GB in {len(flat(bench.numpy_state))} fp32 arrays",
        "method": f"{options.rounds} interleaved rounds; caches dropped by {bench.cache}; "
                  f"fio's engine {machine.engine}; ratios are taken within a round",
    }  # fmt: skip
    print(report.head(described, settings))
    for name, why in bench.missing.items():
        print(f"missing     {name}: {why}")
    print()
    print(bench.report.table())
    if options.json:
        figures = [figure.as_json() for figure in bench.report.figures.values()]
        document = {"machine": described, "settings": settings, "figures": figures}
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
