# SPDX-License-Identifier: Apache-2.0
"""One file of another library's tests, for pytest: `run.py` starts it and says which by the
environment. Its outcome goes to the file that PEERS_RESULT names, as JSON."""

from __future__ import annotations

import importlib
import os
import runpy
from typing import Any

import swap

if os.environ["PEERS_TWINS"]:
    swap.install({name: swap.TWINS[name] for name in os.environ["PEERS_TWINS"].split(",")},
                 os.environ["PEERS_SWAPPED"])
_found: Any = importlib.import_module(os.environ["PEERS_MODULE"])
globals().update({name: value for name, value in vars(_found).items()
                  if not name.startswith("__")})
if os.environ["PEERS_FIXTURES"]:
    globals().update({name: value for name, value in runpy.run_path(
        os.environ["PEERS_FIXTURES"]).items() if not name.startswith(("_", "pytest_"))})
for _base in [each for name, each in vars(_found).items() if name.endswith("TestBase")]:
    if _found.__name__.endswith("_test_base"):  # its tests lie in a class within, to be derived
        globals()[f"{_base.__name__}Test"] = type(f"{_base.__name__}Test", (_base.Test,), {})
