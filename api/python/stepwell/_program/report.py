# SPDX-License-Identifier: Apache-2.0
"""`stepwell report`: a page of a run that opens in a browser, or the document that it shows."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .. import _store
from .._backend.safetensors_file import whole_file
from .._display import format_bytes
from .._report.document import document_of
from .._report.page import page_of
from .._runtime.files import local_path
from .._text import counted
from ..errors import InvalidArgumentError, StepExistsError


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Writes the page, or the document; or prints the document."""
    if given.output is None and not given.json:
        raise InvalidArgumentError("report needs -o FILE.html for a page, or --json to print its "
                                   "document")
    path = None if given.output is None else local_path(given.output)
    if path is not None:
        _check_place(path, given.replace)  # before minutes of work
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        document = document_of(store)
    if given.json:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"
    else:
        text = page_of(document)
    if path is None:
        return {}, text
    data = text.encode("utf-8", "surrogatepass")
    with whole_file(path, store.path, given.replace) as (_, file):
        file.write(data)
    given.json = False
    return {}, (f"wrote {given.output}, {format_bytes(len(data))}: "
                f"{counted(document['steps']['total'], 'step')}, "
                f"{counted(document['leaves']['total_leaves'], 'leaf')}\n")


def _check_place(path: str, replace: bool) -> None:
    if not os.path.isdir(os.path.dirname(path)):
        raise FileNotFoundError(f"there is no directory {os.path.dirname(path)}")
    if not replace and os.path.lexists(path):
        raise StepExistsError(f"{path} exists; --replace writes a new one in its place")
