# SPDX-License-Identifier: Apache-2.0
"""`python -m stepwell push` and `pull`: what the program `stepwell` leaves to Python, for its
libraries of object stores. The program hands its arguments over; what is printed, and the exit
status, are those of all commands (docs/pages/command-line.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import stepwell
from stepwell._views import format_bytes

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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise stepwell.InvalidArgumentError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="stepwell", description="Copies steps to object stores and back.")
    parser.add_argument("--version", action="version", version=f"stepwell {stepwell.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="push|pull")
    push = commands.add_parser("push", help="copy a step to an object store")
    push.add_argument("store", metavar="STORE")
    push.add_argument("step", metavar="STEP", help="a number, or latest")
    push.add_argument("url", metavar="URL")
    push.add_argument("--layout", metavar="v0|v1", choices=("v0", "v1"), default="v1")
    push.add_argument("--leaves", metavar="TYPE", choices=("numpy", "jax"), default="numpy")
    push.add_argument("--on-unsupported", metavar="WHAT", choices=("error", "skip", "widen"),
                      default="error")
    push.add_argument("--unnamed-default", action="store_true")
    push.add_argument("--verify", action="store_true")
    pull = commands.add_parser("pull", help="save a step that push copied to an object store")
    pull.add_argument("url", metavar="URL")
    pull.add_argument("store", metavar="STORE")
    pull.add_argument("--step", metavar="NUMBER", type=int)
    pull.add_argument("--item", metavar="NAME", action="append")
    for command in (push, pull):
        command.add_argument("--if-exists", metavar="WHAT", choices=("error", "replace", "skip"),
                             default="error")
        command.add_argument("--option", metavar="KEY=VALUE", action="append", default=[],
                             help="for the library that opens the URL: region=eu-west-1")
        command.add_argument("--work-dir", metavar="DIR")
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


def _options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise stepwell.InvalidArgumentError(f"--option is KEY=VALUE, not {pair!r}")
        options[key] = value
    return options


def _step(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isascii() or not text.isdecimal():
        raise stepwell.InvalidArgumentError(f'STEP must be a number or "latest", not "{text}"')
    return int(text)


def _push(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    with _Progress("pushing") as progress, stepwell.open(given.store, mode="r") as store:
        report = store.push(
            _step(given.step), given.url, if_exists=given.if_exists, layout=given.layout,
            leaves=given.leaves, unnamed_default=given.unnamed_default,
            on_unsupported=given.on_unsupported, verify=given.verify,
            storage_options=_options(given.option), work_dir=given.work_dir, progress=progress)
    text = f"pushed step {report.step} to {report.url}: {report.objects} objects of "
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
            f"pulled step {report.step} from {report.url}: {report.objects} objects of "
            f"{format_bytes(report.size_bytes)}, {format_bytes(report.received_bytes)} received\n")
    return vars(report), text


def _fail(message: str, code: str, status: int, as_json: bool) -> int:
    if as_json:
        document = {"schema": _SCHEMA, "error": {"code": code, "message": message, "hint": None}}
        sys.stdout.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
    else:
        sys.stderr.write(f"stepwell: {message}\n")
    return status


def run(arguments: Sequence[str]) -> int:
    """The exit status."""
    as_json = "--json" in arguments
    try:
        given = _parser().parse_args(arguments)
        document, text = _push(given) if given.command == "push" else _pull(given)
    except (stepwell.Error, OSError) as error:
        for kind, status, code in _STATUSES:
            if isinstance(error, kind):
                return _fail(str(error), code, status, as_json)
        return _fail(f"{type(error).__name__}: {error}", "error", 1, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted; the same again goes on where it was", "cancelled", 130, as_json)
    if as_json:
        text = json.dumps({"schema": _SCHEMA, **document}, indent=2, sort_keys=True) + "\n"
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
