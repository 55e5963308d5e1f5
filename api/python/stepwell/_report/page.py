# SPDX-License-Identifier: Apache-2.0
"""The report's document as one HTML page, which holds all that it needs.

The page's text, style and scripts lie beside this module; the scripts are plain ones, which share
one scope and are put one after the other in the order of SCRIPTS.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The build tree links modules alone: the other files are beside what the link names.
_HERE = Path(__file__).resolve().parent
SCRIPTS = ("text", "dom", "grid", "chart", "marks", "state", "timeline", "steps", "tree", "mesh",
           "leaf", "arrays", "compare", "space", "speed", "health", "main")


def page_of(document: Mapping[str, Any] | None, live: bool = False) -> str:
    """The page, as HTML text. It makes no request, whatever the document says, except with `live`:
    then it asks the server that it came from, with the token of its own URL, for the document and
    for what a document does not hold. `document` may be None then.

    Raises ValueError for a document that has a NaN or an infinity as a number: they are text there.
    """
    d3 = _text("vendor/d3.v5.min.js")
    style = _text("report.css")
    scripts = "\n".join([_text(f"scripts/{name}.js") for name in SCRIPTS])
    script = f'"use strict";\n(() => {{\n{scripts}\n}})();\n'
    # A policy of hashes: even text that got into the page as markup would not run. Images are
    # those that the page draws itself, and its (empty) icon.
    source = "'self'" if live else "'none'"
    policy = (f"default-src 'none'; script-src {_hashed(d3)} {_hashed(script)}; "
              f"style-src {_hashed(style)}; img-src data:; base-uri 'none'; form-action 'none'; "
              f"connect-src {source}")
    parts = {"policy": policy, "style": style, "live": str(live).lower(), "d3": d3,
             "script": script, "document": "" if document is None else _embedded(document)}
    return re.sub(r"\{(\w+)\}", lambda place: parts[place[1]], _text("page.html"))


def _embedded(document: Mapping[str, Any]) -> str:
    """Base64 has no character that HTML knows, so no name in a document can end the element."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # UTF-8 has no lone surrogates: a name with one keeps its escape.
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), 6, mtime=0)
    return ('<script type="application/gzip;base64" id="document">'
            f"{base64.b64encode(packed).decode()}</script>")


def _hashed(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
