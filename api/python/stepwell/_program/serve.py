# SPDX-License-Identifier: Apache-2.0
"""`stepwell serve`: a run in the browser while it grows, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _store
from ..errors import Error, InvalidArgumentError

_THREADS = 4
_IDLE_S = 10  # then a connection is closed: waitress has room for 100, with or without a token


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Prints the URL, and serves until a signal comes."""
    if not 0 <= given.port <= 65535:
        raise InvalidArgumentError(f"--port must be 0 to 65535, not {given.port}")
    try:
        import waitress.server
    except ImportError:
        raise Error(f"serve needs the package waitress: pip install 'waitress>=3', for "
                    f"{sys.executable}") from None
    from .._report.server import Application  # needs a moment: not for other commands

    # It warns of each request that waits for a thread: many lines would fill a pipe that nothing
    # reads, and the server would stand still.
    logging.getLogger("waitress").setLevel(logging.ERROR)
    with _store.open(given.store, mode="r", untrusted=given.untrusted) as store:
        token = secrets.token_urlsafe(32)
        server = _listening(waitress.server.create_server, Application(store, token, given.host),
                            given.host, given.port)
        try:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, _end)
            host = f"[{given.host}]" if ":" in given.host else given.host
            _show(given, f"http://{host}:{server.effective_port}/?token={token}")
            server.run()  # until SystemExit
        finally:
            server.close()
    return {}, ""


def _listening(create: Callable[..., Any], application: object, host: str, port: int) -> Any:
    """Raises Error where nothing can listen there."""
    try:
        # Of a name with several addresses the first: each would have a port of its own.
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        is_v6 = ":" in str(address)
        return create(application, host=address, port=port, ipv4=not is_v6, ipv6=is_v6,
                      threads=_THREADS, ident=None, max_request_body_size=1024,
                      channel_timeout=_IDLE_S, cleanup_interval=_IDLE_S // 2,
                      clear_untrusted_proxy_headers=True)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Error(f"cannot serve at {host}, port {port}: {why}") from None


def _show(given: argparse.Namespace, url: str) -> None:
    text = json.dumps({"schema": 1, "store": given.store, "url": url}) if given.json else url
    print(text, flush=True)
    given.json = False


def _end(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process
    raise SystemExit(0)
