# SPDX-License-Identifier: Apache-2.0
"""Measures the store beside the machine's own limits and beside others; see README.md here."""

import argparse
import json
import logging
import pathlib
import shutil
import signal
import sys
import tempfile
from typing import Any

import chart
import contenders
import limits
import machine
import plan
import rows
import tables
from report import Report
from rounds import Run

FULL = {"leaves": 2000, "tiny": 100_000, "wide": 10_000, "commits": 30, "steps": 1000,
        "many": 100_000,
        "step_leaves": 1000, "space_steps": 30, "million": 1_000_000,
        "jax_leaves": 1000, "settle": 1}
QUICK = {"leaves": 50, "tiny": 200, "wide": 100, "commits": 5, "steps": 10, "many": 300,
         "step_leaves": 20,
         "space_steps": 8, "million": 300, "jax_leaves": 20, "settle": 0}


def names(known: list[str]) -> Any:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: there is only {', '.join(known)}")
        return chosen

    return parse


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("--size", type=float, default=0.8, metavar="GB", help="of the full state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path.cwd(),
                        help="where to write: the disk to measure (default: here)")
    parser.add_argument("--rows", type=names(plan.THEMES), default=plan.THEMES, metavar="THEME,…",
                        help=f"what to measure, of: {', '.join(plan.THEMES)}")
    parser.add_argument("--contenders", type=names(list(contenders.ALL)), metavar="NAME,…",
                        help=f"who, of: {', '.join(contenders.ALL)}")
    # bench/run adds the interpreter after it has installed PyTorch.
    parser.add_argument("--torch", metavar="PYTHON",
                        help="PyTorch, too, with the interpreter of an environment that has it; "
                             "bench/run makes bench/.venv-torch (several GB) and adds its path")
    parser.add_argument("--encoders", type=pathlib.Path, metavar="DIR",
                        help="the theme publish beside the encoders of TRL and prime-rl, of which "
                             "DIR has checkouts; needs --torch")
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS",
                        help="what takes longer is not repeated in later rounds")
    parser.add_argument("--json", type=pathlib.Path, help="write every value there")
    parser.add_argument("--from", dest="source", type=pathlib.Path, metavar="JSON",
                        help="measure nothing; print the tables of what --json wrote")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE",
                        help="draw the chart of the README there")
    parser.add_argument("--quick", action="store_true",
                        help="tiny states, one round: does it run? The numbers mean nothing")
    options = parser.parse_args(arguments)
    options.counts = dict(QUICK if options.quick else FULL)
    if options.quick:
        options.size, options.rounds = 0.004, 1
    options.counts["size_bytes"] = int(options.size * 1e9)
    options.contenders = options.contenders or [
        key for key in contenders.ALL if options.torch or key not in contenders.TORCH]
    if not options.torch and set(options.contenders) & set(contenders.TORCH):
        parser.error("contenders of PyTorch need --torch")
    if options.encoders and not options.torch:
        parser.error("--encoders needs --torch")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that JSON and the tables show. Written to --json after each round, too."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="stepwell-bench-", dir=options.dir)).resolve()
    try:
        described = machine.describe(directory)
        described["versions"]["fio"] = limits.fio_version() or "missing"
        counts = options.counts
        catalogue = rows.catalogue(*(counts[name] for name in (
            "leaves", "tiny", "wide", "steps", "step_leaves", "million", "jax_leaves",
            "many")), encoders=bool(options.encoders))
        report = Report(catalogue, options.contenders)
        run = Run(directory, options.contenders, options.rows, options.rounds, counts,
                  {key: options.torch for key in contenders.TORCH}, options.patience, report,
                  (options.torch, str(options.encoders.resolve())) if options.encoders else None)
        try:
            run.go(lambda: write(options.json, document(described, options, run)))
        except KeyboardInterrupt:
            report.failures.append("interrupted: what was measured until then is here")
        return document(described, options, run)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def document(described: dict[str, Any], options: argparse.Namespace, run: Run) -> dict[str, Any]:
    for key in contenders.TORCH:
        if key in run.versions:
            described["versions"]["torch"] = run.versions[key]
    settings = {
        "arrays": run.state_arrays,
        "state": f"{run.state_bytes / 1e9:.3f} GB in {run.state_arrays} fp32 arrays",
        "method": f"{options.rounds} interleaved rounds, each contender in new processes; cold: "
                  f"{machine.CACHE}; fio's engine {limits.engine}; ratios are taken within a round",
        "missing": run.missing,
    }  # fmt: skip
    return {"machine": described, "settings": settings, **run.report.as_json()}


def write(file: pathlib.Path | None, measured: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that files are removed then, too
    logging.disable(logging.INFO)
    if options.source is not None:
        measured = json.loads(options.source.read_text())
    else:
        measured = measure(options)
    write(options.json, measured)
    report = Report.from_json(measured)
    if options.svg is not None:
        options.svg.write_text(chart.svg(report), encoding="utf-8")
    print("```\n" + tables.head(measured["machine"], measured["settings"]) + "\n```\n")
    print(tables.full(report))
    print("\nFor the README at the top:\n")
    print(tables.short(report, measured["settings"]["arrays"]))
    problems = report.failures + [
        f"{key} cannot be imported: {why}" for key, why in measured["settings"]["missing"].items()]
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
