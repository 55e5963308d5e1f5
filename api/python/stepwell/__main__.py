# SPDX-License-Identifier: Apache-2.0
"""`python -m stepwell COMMAND`: what the program `stepwell` leaves to Python: arrays, object
stores, files of other libraries, branches. The program hands its arguments over; what is printed,
and the exit status, are those of all commands (docs/pages/command-line.md)."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import stepwell
from stepwell._display import format_bytes
from stepwell._program import (bisect, cat, diff, history, over_steps, push_follow, report,
                               serve, top)
from stepwell._text import counted

_SCHEMA = 1
_STATUSES: tuple[tuple[type[BaseException], int, str], ...] = (
    (stepwell.CorruptionError, 4, "corruption"),
    (stepwell.LockedError, 5, "locked"),
    (stepwell.NoSpaceError, 6, "no_space"),
    (stepwell.OutcomeUnknownError, 8, "outcome_unknown"),
    (stepwell.StorageError, 1, "io_error"),
    (stepwell.PermissionDeniedError, 1, "permission_denied"),
    (stepwell.FormatError, 1, "format"),
    (stepwell.StepExistsError, 1, "already_exists"),
    (FileNotFoundError, 3, "not_found"),
    (stepwell.PathNotFoundError, 3, "not_found"),
    (stepwell.InvalidArgumentError, 2, "usage"),
    (stepwell.Error, 1, "error"),
)

_HINTS = {
    "corruption": "`stepwell verify STORE` lists every damaged leaf; the others still load",
    "not_found": "`stepwell ls STORE` lists the steps, `stepwell show STORE STEP` the paths of one",
    "no_space": "nothing that was saved is lost; `stepwell rm` and `stepwell reclaim` free the "
                "space of steps, also where the store's own disk is full",
    "locked": "what only reads works beside it; `stepwell help` says which commands do not",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise stepwell.InvalidArgumentError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="stepwell", description="Commands that need Python's libraries.")
    parser.add_argument("--version", action="version", version=f"stepwell {stepwell.__version__}")
    commands = parser.add_subparsers(dest="command", required=True,
                                      metavar="cat|diff|history|digest|top|bisect|report|serve|"
                                              "patch|push|"
                                              "pull|ls|rm|import|branch|branches")
    show = commands.add_parser("cat", help="print arrays and values")
    show.add_argument("store", metavar="STORE")
    show.add_argument("step", metavar="STEP", help="a number, or latest")
    show.add_argument("path", metavar="PATH")
    show.add_argument("--full", action="store_true")
    show.add_argument("--slice", metavar="SLICE")
    show.add_argument("--npy", action="store_true")
    show.add_argument("--output", metavar="FILE")
    show.add_argument("--bits", action="store_true")
    compare = commands.add_parser("diff", help="compare two steps")
    compare.add_argument("store", metavar="STORE")
    compare.add_argument("step", metavar="A")
    compare.add_argument("step_b", metavar="B")
    compare.add_argument("path", metavar="PATH", nargs="?", default="")
    compare.add_argument("--other", metavar="STORE")
    compare.add_argument("--exit-code", action="store_true")
    compare.add_argument("--records", action="store_true")
    over_time = commands.add_parser("history", help="print one leaf over time")
    over_time.add_argument("store", metavar="STORE")
    over_time.add_argument("path", metavar="PATH")
    over_time.add_argument("--steps", metavar="FIRST:END")
    over_time.add_argument("--slice", metavar="SLICE")
    over_time.add_argument("--csv", action="store_true")
    content = commands.add_parser("digest", help="print the digest of a step")
    content.add_argument("store", metavar="STORE")
    content.add_argument("step", metavar="STEP", nargs="?", default="latest")
    content.add_argument("path", metavar="PATH", nargs="?", default="")
    watch = commands.add_parser("top", help="how a store does, live")
    watch.add_argument("store", metavar="STORE")
    watch.add_argument("--interval", metavar="S", type=float, default=1.0)
    watch.add_argument("--once", action="store_true")
    turning = commands.add_parser("bisect", help="find the step from which on a command fails")
    turning.add_argument("store", metavar="STORE")
    turning.add_argument("--good", metavar="STEP", required=True)
    turning.add_argument("--bad", metavar="STEP", required=True)
    turning.add_argument("--export", metavar="orbax|none", choices=("orbax", "none"))
    turning.add_argument("--word", action="append", default=[], help="one of the command, behind :")
    wide = commands.add_parser("ls-wide", help="sizes, times and metrics over the steps, as bars")
    wide.add_argument("store", metavar="STORE")
    wide.add_argument("--last", metavar="N", type=int, default=0, help="0: all")
    page = commands.add_parser("report", help="write a page of a run")
    page.add_argument("store", metavar="STORE")
    page.add_argument("--output", metavar="FILE")
    page.add_argument("--replace", action="store_true")
    live = commands.add_parser("serve", help="show a run in the browser while it grows")
    live.add_argument("store", metavar="STORE")
    live.add_argument("--host", metavar="ADDRESS", default="127.0.0.1")
    live.add_argument("--port", metavar="PORT", type=int, default=0, help="0: a free one")
    for command in (show, compare, over_time, content, watch, turning, wide, page, live):
        command.add_argument("--untrusted", action="store_true")
    patch = commands.add_parser("patch", help="write what changed between two steps")
    patch.add_argument("store", metavar="STORE")
    patch.add_argument("since", metavar="SINCE", help="a number, or latest")
    patch.add_argument("to", metavar="TO", help="a number, or latest")
    patch.add_argument("file", metavar="FILE")
    patch.add_argument("--item", metavar="PATH")
    patch.add_argument("--rename", metavar="FROM=TO", action="append", default=[])
    patch.add_argument("--dtype", metavar="TYPE")
    patch.add_argument("--on-unsupported", metavar="WHAT", choices=("error", "skip", "widen"),
                       default="error")
    patch.add_argument("--no-digests", action="store_true")
    patch.add_argument("--replace", action="store_true")
    patch.add_argument("--untrusted", action="store_true")
    push = commands.add_parser("push", help="copy a step to an object store")
    push.add_argument("store", metavar="STORE")
    push.add_argument("step", metavar="STEP", help="a number, or latest; with --follow none",
                      nargs="?")
    push.add_argument("url", metavar="URL")
    push.add_argument("--layout", metavar="v0|v1|stepwell", choices=("v0", "v1", "stepwell"),
                      default="v1")
    push.add_argument("--leaves", metavar="TYPE", choices=("numpy", "jax"))
    push.add_argument("--on-unsupported", metavar="WHAT", choices=("error", "skip", "widen"),
                      default="error")
    push.add_argument("--unnamed-default", action="store_true")
    push.add_argument("--verify", action="store_true")
    push.add_argument("--follow", action="store_true")
    push.add_argument("--keep", metavar="N", type=int)
    pull = commands.add_parser("pull", help="save a step that push copied to an object store")
    pull.add_argument("url", metavar="URL")
    pull.add_argument("store", metavar="STORE")
    pull.add_argument("--step", metavar="NUMBER", type=int)
    pull.add_argument("--item", metavar="NAME", action="append")
    ls = commands.add_parser("ls", help="list the steps that were pushed to an object store")
    ls.add_argument("url", metavar="URL")
    ls.add_argument("--last", metavar="N", type=int, default=0, help="0: all")
    rm = commands.add_parser("rm", help="delete steps of a pushed run")
    rm.add_argument("url", metavar="URL")
    rm.add_argument("steps", metavar="STEP", nargs="+")
    rm.add_argument("--sweep", action="store_true")
    take = commands.add_parser("import", help="save a file of another library as a step")
    take.add_argument("source", metavar="SRC")
    take.add_argument("store", metavar="STORE")
    take.add_argument("--step", metavar="NUMBER", type=int)
    take.add_argument("--like", metavar="STEP", type=int)
    branch = commands.add_parser("branch", help="make a branch")
    branch.add_argument("store", metavar="STORE")
    branch.add_argument("name", metavar="NAME")
    branch.add_argument("--step", metavar="NUMBER", type=int)
    branches = commands.add_parser("branches", help="list the branches")
    branches.add_argument("store", metavar="STORE")
    for command in (push, pull, take):
        command.add_argument("--if-exists", metavar="WHAT", choices=("error", "replace", "skip"),
                             default="error")
    for command in (push, pull, ls, rm):
        command.add_argument("--option", metavar="KEY=VALUE", action="append", default=[],
                             help="for the library that opens the URL: region=eu-west-1")
    for command in (push, pull):
        command.add_argument("--work-dir", metavar="DIR")
    for command in (show, compare, over_time, content, watch, turning, wide, page, live, patch,
                    push, pull, ls, rm, take, branch, branches):
        command.add_argument("--json", action="store_true")
    return parser


class _Progress:
    """One line on a terminal that is written over."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._enabled = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._enabled and now - self._shown > 0.1:
            self._shown = now
            sys.stderr.write(f"\r\x1b[K{self._what}: {100 * done // max(total, 1)}% of "
                             f"{format_bytes(total)}")
            sys.stderr.flush()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def _pairs(option: str, form: str, pairs: list[str]) -> dict[str, str]:
    made = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise stepwell.InvalidArgumentError(f"{option} is {form}, not {pair!r}")
        made[key] = value
    return made


def _options(pairs: list[str]) -> dict[str, str]:
    return _pairs("--option", "KEY=VALUE", pairs)


def _number(text: str) -> int:
    """Takes a number as a store's index does: -1 is the newest step."""
    step = _step(text)
    return -1 if step is None else step


def _step(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isascii() or not text.isdecimal():
        raise stepwell.InvalidArgumentError(f'STEP must be a number or "latest", not "{text}"')
    return int(text)


def _patch(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with stepwell.open(given.store, mode="r", untrusted=given.untrusted) as store:
        since, to = (store[_number(text)].step if text == "latest" else _number(text)
                     for text in (given.since, given.to))
        report = store.export_patch(
            since, to, given.file, item=given.item,
            rename=_pairs("--rename", "FROM=TO", given.rename) or None, dtype=given.dtype,
            on_unsupported=given.on_unsupported, digests=not given.no_digests,
            replace=given.replace)
    text = (f"wrote {report.path}, {format_bytes(report.size_bytes)}, from step {since} to {to}: "
            f"{counted(report.sparse, 'tensor')} with {counted(report.elements, 'element')}, "
            f"{report.dense:,} whole, {report.unchanged:,} unchanged, {len(report.removed):,} "
            "removed\n")
    for what, leaves in (("left out", report.skipped), ("widened", report.widened)):
        text += "".join(f"{what} {leaf.path}: {leaf.reason}\n" for leaf in leaves)
    return {**vars(report), "skipped": [leaf._asdict() for leaf in report.skipped],
            "widened": [leaf._asdict() for leaf in report.widened]}, text


def _push(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    if given.follow:
        given.options = _options(given.option)
        return push_follow.run(given)
    if given.step is None:
        raise stepwell.InvalidArgumentError("STEP is required")
    with _Progress("pushing") as progress, stepwell.open(given.store, mode="r") as store:
        report = store.push(
            _step(given.step), given.url, if_exists=given.if_exists, layout=given.layout,
            leaves=given.leaves or (None if given.layout == "stepwell" else "numpy"),
            unnamed_default=given.unnamed_default,
            on_unsupported=given.on_unsupported, verify=given.verify,
            storage_options=_options(given.option), work_dir=given.work_dir, progress=progress)
    text = f"pushed step {report.step} to {report.url}: {counted(report.objects, 'object')} of "
    text += f"{format_bytes(report.size_bytes)}, {format_bytes(report.sent_bytes)} sent\n"
    if report.skipped:
        text = f"skipped {report.url}, where a pushed step is already\n"
    for what, leaves in (("left out", report.left_out), ("widened", report.widened)):
        text += "".join(f"{what} {leaf.path}: {leaf.reason}\n" for leaf in leaves)
    return {**vars(report), "left_out": [leaf._asdict() for leaf in report.left_out],
            "widened": [leaf._asdict() for leaf in report.widened]}, text


def _pull(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with _Progress("pulling") as progress, stepwell.open(given.store) as store:
        report = store.pull(
            given.url, given.step, if_exists=given.if_exists, items=given.item,
            storage_options=_options(given.option), work_dir=given.work_dir, progress=progress)
    text = (f"skipped step {report.step}, which is there already\n" if report.skipped else
            f"pulled step {report.step} from {report.url}: {counted(report.objects, 'object')} of "
            f"{format_bytes(report.size_bytes)}, {format_bytes(report.received_bytes)} received\n")
    return vars(report), text


def _ls(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    steps = stepwell.pushed_steps(given.url, storage_options=_options(given.option))[-given.last:]
    rows = [("STEP", "OBJECTS", "SIZE", "URL")] + [
        (str(each.step), f"{each.objects:,}", format_bytes(each.size_bytes), each.url)
        for each in steps]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    text = "".join("  ".join([*(cell.rjust(width) for cell, width in zip(row, widths)), row[3]])
                   + "\n" for row in rows)
    if not steps:
        sys.stderr.write(f"stepwell: no step was pushed to {given.url}\n")
        text = ""
    return {"url": given.url, "steps": [vars(each) for each in steps]}, text


def _rm(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    options = _options(given.option)
    there = sorted(each.step for each in stepwell.pushed_steps(given.url, storage_options=options))
    steps = [there[-1] if _step(text) is None and there else _step(text) for text in given.steps]
    text, objects, size = "", 0, 0
    for step in dict.fromkeys(steps):
        report = stepwell.delete_pushed(given.url, step, storage_options=options,
                                        sweep=given.sweep)
        objects, size = objects + report.objects, size + report.size_bytes
        text += (f"deleted step {step} of {report.url}: {counted(report.objects, 'object')} of "
                 f"{format_bytes(report.size_bytes)}\n")
    return {"url": given.url, "steps": steps, "objects": objects, "size_bytes": size}, text


def _import(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with stepwell.open(given.store) as store:
        like = None if given.like is None else store.load(given.like)
        handle = store.import_checkpoint(given.source, given.step, like=like,
                                         if_exists=given.if_exists)
        step = handle.result()
        size = store._source(step).reader.logical_bytes
    text = (f"skipped step {step}, which is there already\n" if handle.skipped else
            f"imported step {step}, {format_bytes(size)}, from {given.source}\n")
    return {"store": given.store, "steps": [{
        "step": step, "source": given.source, "skipped": handle.skipped, "items": ["state"],
        "logical_bytes": size}]}, text


def _branch(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with stepwell.open(given.store, create=False) as store:
        newest = {} if given.step is None else {"step": given.step}
        path = store.branch(given.name, **newest)
    return {"store": given.store, "branch": given.name, "path": path}, f"{path}\n"


def _branches(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with stepwell.open(given.store, mode="r") as store:
        names = store.branches()
    return {"store": given.store, "branches": names}, "".join(f"{name}\n" for name in names)


def _cat(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    given.number = _number(given.step)
    return cat.run(given), ""


def _diff(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    given.number, given.number_b = _number(given.step), _number(given.step_b)
    with _Progress("comparing") as given.progress:
        return diff.run(given)


def _digest(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    number = _number(given.step)
    with stepwell.open(given.store, mode="r", untrusted=given.untrusted) as store:
        step = store[number].step
        found = store.digest(step, given.path or None)
    return {"store": given.store, "step": step, "path": given.path, "digest": found}, f"{found}\n"


def _bisect(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    given.good, given.bad = _number(given.good), _number(given.bad)
    given.word = [word[1:] for word in given.word]  # behind the colon
    return bisect.run(given)


_COMMANDS = {"cat": _cat, "diff": _diff, "history": history.run, "digest": _digest,
             "top": top.run, "bisect": _bisect, "ls-wide": over_steps.run,
             "report": report.run, "serve": serve.run, "patch": _patch, "push": _push,
             "pull": _pull, "ls": _ls, "rm": _rm,
             "import": _import, "branch": _branch, "branches": _branches}


def _fail(message: str, code: str, status: int, given: Sequence[str], hint: str | None = None
          ) -> int:
    # Options of the package as those of the program.
    message = message.replace("storage_options", "--option")
    message = re.sub(r'\b(if_exists|on_unsupported)[= ]"(\w+)"',
                     lambda match: f"--{match[1].replace('_', '-')} {match[2]}", message)
    if hint is None and code == "usage" and given:
        hint = f"`stepwell {given[0]} --help` has its options and an example"
    if "--json" in given:
        document = {"schema": _SCHEMA, "error": {"code": code, "message": message,
                                                 "hint": hint or _HINTS.get(code)}}
        sys.stdout.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
    else:
        sys.stderr.write(f"stepwell: {message}\n")
        if hint or code in _HINTS:
            sys.stderr.write(f"  hint: {hint or _HINTS[code]}\n")
    return status


def _run(given: Sequence[str]) -> int:
    try:
        arguments = _parser().parse_args(given)
        arguments.print, arguments.status = sys.stdout.write, 0
        document, text = _COMMANDS[arguments.command](arguments)
        if arguments.json and document:
            text = json.dumps({"schema": _SCHEMA, **document}, indent=2, sort_keys=True) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        return int(arguments.status)
    except BrokenPipeError:
        raise
    except (stepwell.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return _fail(str(error), "no_space", 6, given)
        for kind, status, code in _STATUSES:
            if isinstance(error, kind):
                return _fail(str(error), code, status, given)
        return _fail(f"{type(error).__name__}: {error}", "error", 1, given)
    except KeyboardInterrupt as interrupt:
        return _fail(str(interrupt) or "interrupted; the same again goes on where it was",
                     "cancelled", 130, given)


def run(given: Sequence[str]) -> int:
    """The exit status."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return _run(given)
    except BrokenPipeError:  # the reader of the pipe has closed it: no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
