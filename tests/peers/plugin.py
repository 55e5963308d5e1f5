# SPDX-License-Identifier: Apache-2.0
"""The requirements of `one_file.py` on pytest: parsed flags of absl, one process of jax.distributed
where a file is one for many, and the outcomes as JSON."""

from __future__ import annotations

import importlib
import json
import os
import socket
from typing import Any

import pytest

_outcomes: dict[str, dict[str, str]] = {}


def pytest_configure(config: pytest.Config) -> None:
    flags: Any = importlib.import_module("absl.flags")
    flags.FLAGS.mark_as_parsed()
    if os.environ.get("PEERS_DISTRIBUTED"):
        jax: Any = importlib.import_module("jax")
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        jax.distributed.initialize(f"localhost:{port}", 1, 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.partition("::")[2]
    before = _outcomes.get(name)
    if report.when != "call" and report.outcome == "passed":
        return
    if before is not None and before["outcome"] == "failed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    _outcomes[name] = {"outcome": report.outcome, "message": "" if report.passed else str(
        getattr(crash, "message", report.longrepr))[:400]}
    if report.failed:
        _outcomes[name]["text"] = str(report.longrepr)[-6000:]
    _write(_outcomes)


def _write(outcomes: dict[str, dict[str, str]]) -> None:
    with open(os.environ["PEERS_RESULT"], "w", encoding="utf-8") as file:
        json.dump(outcomes, file, indent=1)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write({"": {"outcome": "failed", "message": "the file cannot be imported",
                     "text": str(report.longrepr)[-6000:]}})
