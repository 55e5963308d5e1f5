# SPDX-License-Identifier: Apache-2.0
r"""Runs other libraries' own tests on the facades, and says what fails.

    PYTHONPATH=build/check-python/python .venv/bin/python tests/peers/run.py \\
        --work /tmp/peers orbax=/src/orbax orbax_v1=/src/orbax flax=/src/flax [--only WORDS]

Each library's sources are a checkout that the caller has. Every file of tests runs in a process of
its own, once on the library itself ("base") and once on the facade; what base passes and the facade
fails is looked up in `known.txt`. README.md says what the classes there mean, and has the table.

Exit status 1: a failure that known.txt does not have.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from suites import SUITES, Suite

HERE = Path(__file__).parent
KNOWN = HERE / "known.txt"
Outcomes = dict[str, dict[str, str]]  # of tests: "outcome", "message", "text"
Known = tuple[str, str, str]
Row = tuple[str, int, int, Counter[str]]  # file, passes of base and of the facade, failures
NEW = "NEW"
TEXT = "text"  # by assertRaisesRegex: the class of the error is right, its words are others
_OTHER_WORDS = re.compile(r'AssertionError: ".*" does not match "')
CLASSES = ("internal", "documented", "swap", "defect")


def overlay(work: Path, checkout: Path) -> Path:
    """The installed Orbax, with the tests of a checkout beside its modules."""
    found = importlib.util.find_spec("orbax.checkpoint")
    assert found is not None and found.origin is not None, "orbax-checkpoint is not installed"
    made = work / "overlay"
    target = made / "orbax" / "checkpoint"
    if target.exists():
        return made
    shutil.copytree(Path(found.origin).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    source = checkout / "checkpoint" / "orbax" / "checkpoint"
    for each in sorted(source.rglob("*")):
        other = target / each.relative_to(source)
        if each.is_file() and not other.exists() and not (target / each.relative_to(
                source).with_suffix("")).is_dir():
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, other)
    return made


def run_file(suite: Suite, checkout: Path, work: Path, name: str, ours: bool, limit_s: float
             ) -> Outcomes:
    """Outcomes by test. An empty name is the file itself: not imported, or out of time."""
    module = f"{suite.package}.{name}".lstrip(".")
    result = work / "results" / f"{'ours' if ours else 'base'}-{module}.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    top = overlay(work, checkout) if suite.overlay else checkout / suite.root
    paths = [top, HERE, *(checkout / path for path in suite.paths)]
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
        "PEERS_MODULE": module, "PEERS_RESULT": str(result), "PEERS_SWAPPED": suite.swapped,
        "PEERS_TWINS": ",".join(suite.twins) if ours else "",
        "PEERS_FIXTURES": str(checkout / suite.fixtures) if suite.fixtures else "",
        "PEERS_DISTRIBUTED": "1" if name in suite.distributed else "",
        "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONDONTWRITEBYTECODE": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={suite.devices}",
        "TMPDIR": str(work / "tmp")}
    shutil.rmtree(work / "tmp", ignore_errors=True)
    (work / "tmp").mkdir()
    log = result.with_suffix(".log")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "plugin",
               "--assert=plain", f"--confcutdir={HERE}", f"--rootdir={HERE}", "-c", os.devnull,
               str(HERE / "one_file.py")]
    with log.open("w") as out:
        try:
            subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT,
                           timeout=limit_s, check=False, cwd=work / "tmp")
            ended = ""
        except subprocess.TimeoutExpired:
            ended = f"out of time: {limit_s:.0f} s"
    outcomes: Outcomes = json.loads(result.read_text()) if result.exists() else {}
    if ended or not outcomes:
        outcomes[""] = {"outcome": "failed", "message": ended or "no test ran", "text": ""}
        result.write_text(json.dumps(outcomes, indent=1))
    return outcomes


def read_known() -> list[Known]:
    """Classes, with patterns of `module::test` and of the first line of what it says."""
    known = []
    for line in KNOWN.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            kind, test, *message = line.split(None, 2)
            assert kind in CLASSES, line
            known.append((kind, test, message[0] if message else "*"))
    return known


def classify(known: list[Known], test: str, message: str) -> str:
    for kind, of_test, of_message in known:
        if fnmatch.fnmatchcase(test, of_test) and fnmatch.fnmatchcase(message, of_message):
            return kind
    return TEXT if _OTHER_WORDS.match(message) else NEW


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a folder for what this makes")
    parser.add_argument("--only", default="", help="files whose module has one of these words")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a file")
    parser.add_argument("--keep-base", action="store_true", help="use base's results of before")
    parser.add_argument("--report", action="store_true", help="run nothing; use results of before")
    parser.add_argument("checkouts", nargs="+", metavar="LIBRARY=CHECKOUT")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    words = options.only.split(",") if options.only else []
    known = read_known()
    rows: list[Row] = []
    failures: list[str] = []
    for each in options.checkouts:
        library, _, checkout = each.partition("=")
        suite = SUITES[library]
        for name in suite.files:
            if words and not any(word in f"{suite.package}.{name}" for word in words):
                continue
            found = [outcomes_of(suite, Path(checkout).resolve(), work, name, ours, options)
                     for ours in (False, True)]
            rows.append(compared(f"{suite.package}.{name}".lstrip("."), found, known, failures))
            print(row_text(*rows[-1]), flush=True)
    (work / "failures.txt").write_text("".join(f"{line}\n" for line in failures))
    (work / "table.md").write_text(table(rows))
    new = sum(row[3][NEW] for row in rows)
    print(f"\n{new} failures are not in {KNOWN.name}; all are in {work / 'failures.txt'}")
    return 1 if new else 0


def outcomes_of(suite: Suite, checkout: Path, work: Path, name: str, ours: bool,
                options: argparse.Namespace) -> Outcomes:
    module = f"{suite.package}.{name}".lstrip(".")
    before = work / "results" / f"{'ours' if ours else 'base'}-{module}.json"
    if before.exists() and (options.report or options.keep_base and not ours):
        found: Outcomes = json.loads(before.read_text())
        return found
    return {} if options.report else run_file(suite, checkout, work, name, ours, options.limit)


def compared(module: str, outcomes: list[Outcomes], known: list[Known], failures: list[str]
             ) -> Row:
    """A file's row of the table; what fails is added to `failures`, in the form of known.txt.
    outcomes: of base, and of the facade."""
    base, ours = outcomes
    passing = {test for test, told in base.items() if told["outcome"] == "passed"}
    good = {test for test in passing if ours.get(test, {}).get("outcome") == "passed"}
    kinds: Counter[str] = Counter()
    for test in sorted(passing - good):
        told = ours.get(test) or {"message": ours.get("", {}).get("message", "did not run")}
        first = told["message"].strip().partition("\n")[0][:160]
        kind = classify(known, f"{module}::{test}", first)
        kinds[kind] += 1
        failures.append(f"{kind:<10} {module}::{test}  # {first}")
    return module, len(passing), len(good), kinds


def row_text(module: str, base: int, good: int, kinds: Counter[str]) -> str:
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"| {module} | {base} | {good} | {base - good} | {told} |"


def table(rows: list[Row]) -> str:
    lines = ["| file | base passes | ours passes | ours fails | classes |",
             "| --- | --- | --- | --- | --- |"]
    total: Counter[str] = Counter()
    for each in rows:
        lines.append(row_text(*each))
        total.update(each[3])
    lines.append(row_text("all", sum(each[1] for each in rows), sum(each[2] for each in rows),
                          total))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
