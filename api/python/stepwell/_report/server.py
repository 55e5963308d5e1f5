# SPDX-License-Identifier: Apache-2.0
"""A run over HTTP while it grows: the page, its document, and what a document does not hold.

    GET /                  the page, which asks for the others
    GET /document.json     the document (report.schema.json) as the run is now, with an ETag
    GET /leaf              elements: ?step=&path=&item=&slice=&bins=&low=&high=
    GET /changed           what differs between two steps: ?a=&b=

Each needs `token`, which is compared in constant time: 403 without it. Nothing but GET and HEAD is
answered, and only under the server's own names, so that no site that a browser visits can ask in
its stead. The store is open for reading only. The answers are JSON; those that are no success have
an `error` with a `message`.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import ipaddress
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from .._store import Store
from ..errors import (CorruptionError, Error, InvalidArgumentError, PathNotFoundError,
                      StepNotFoundError)
from .details import changes_of, leaf_of
from .document import SCHEMA, document_of
from .page import page_of
from .pictures import BINS_MAX

Headers = list[tuple[str, str]]
Start = Callable[[str, Headers], object]
_FRESH_S = 30.0  # a document is made anew after so long, whether or not steps came: space changes
_SHARE = 4.0  # and not before so many times the time that it takes: training needs the CPU
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HEADERS = [
    ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin")]


class _Answer(NamedTuple):
    status: str
    kind: str  # of the content
    body: bytes
    headers: Headers = []  # noqa: RUF012


class _RefusedError(Exception):
    """A request that gets no success. `status`: as HTTP has it."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


class Application:
    """A WSGI application, for several threads. `host`: where the server listens."""

    def __init__(self, store: Store, token: str, host: str) -> None:
        self._store = store
        self._token = token.encode()
        self._names = _names_of(host)
        self._page = page_of(None, live=True).encode()
        self._documents = _Documents(store)

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        try:
            answer = self._answer(environ)
        except _RefusedError as error:
            answer = _failed(error.status, str(error))
        except (StepNotFoundError, PathNotFoundError) as error:
            answer = _failed("404 Not Found", str(error))
        except (InvalidArgumentError, ValueError) as error:
            answer = _failed("400 Bad Request", str(error))
        except CorruptionError as error:
            answer = _failed("500 Internal Server Error", f"the store is damaged: {error}")
        except Error as error:
            answer = _failed("500 Internal Server Error", str(error))
        headers = [*_HEADERS, ("Content-Type", answer.kind), *answer.headers]
        body = answer.body
        if len(body) > 1024 and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, 1)
            headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
        if not answer.status.startswith("304"):
            headers.append(("Content-Length", str(len(body))))
        start(answer.status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: dict[str, Any]) -> _Answer:
        host = environ.get("HTTP_HOST", "")
        if not self._names(_name_in(host)):
            raise _RefusedError("421 Misdirected Request",
                                f"this server is not {host!r}: ask it under the address that it "
                                "printed")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            raise _RefusedError("405 Method Not Allowed", "only GET and HEAD are answered")
        query = _Query(environ.get("QUERY_STRING", ""))
        if not hmac.compare_digest(query.token, self._token):
            raise _RefusedError("403 Forbidden", "the token is missing or wrong: open the URL that "
                                                 "`stepwell serve` printed")
        match environ.get("PATH_INFO", ""):
            case "/":
                query.check()
                return _Answer("200 OK", "text/html; charset=utf-8", self._page)
            case "/document.json":
                query.check()
                return self._document(environ.get("HTTP_IF_NONE_MATCH"))
            case "/leaf":
                query.check("step", "path", "item", "slice", "bins", "low", "high")
                return _json(self._leaf(query))
            case "/changed":
                query.check("a", "b")
                return _json(changes_of(self._store, query.step("a"), query.step("b")))
        raise _RefusedError("404 Not Found", "there is /, /document.json, /leaf and /changed")

    def _document(self, known: str | None) -> _Answer:
        tag, body = self._documents.newest()
        headers = [("ETag", tag)]
        if known == tag:
            return _Answer("304 Not Modified", "application/json", b"", headers)
        return _Answer("200 OK", "application/json", body, headers)

    def _leaf(self, query: _Query) -> dict[str, Any]:
        low, high = query.number("low"), query.number("high")
        if low is not None and high is not None and not low < high:
            raise InvalidArgumentError(f"low must be below high, and {low} is not below {high}")
        return leaf_of(self._store, query.step("step"), query.text("path"),
                       query.text("slice", ""), query.bins(), low, high,
                       query.text("item") if query.has("item") else None)


class _Documents:
    """The newest document, made once for all requests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._state: object = None
        self._made = self._took = 0.0  # when the last one was done; how long it took
        self._newest = ("", b"")

    def newest(self) -> tuple[str, bytes]:
        """Its ETag, and itself."""
        with self._lock:
            begun = time.monotonic()
            age = begun - self._made
            if self._newest[0] and age < _SHARE * self._took:
                return self._newest
            state = self._state_now()
            if self._newest[0] and state == self._state and age < max(
                    _FRESH_S, _SHARE * self._took):
                return self._newest
            body = json.dumps(document_of(self._store, live=True), separators=(",", ":"),
                              allow_nan=False).encode()
            self._newest = f'"{hashlib.sha256(body).hexdigest()[:32]}"', body
            self._state, self._made = state, time.monotonic()
            self._took = self._made - begun
            return self._newest

    def _state_now(self) -> object:
        return hash(tuple([(each.commit, each.pinned, each.taint, each.verified)
                           for each in self._store._backend.whole("a report").steps()]))


class _Query:
    """The arguments of a request, each given once."""

    def __init__(self, text: str) -> None:
        try:
            self._given = parse_qs(text, keep_blank_values=True, max_num_fields=16,
                                   errors="surrogatepass")  # as names are stored
        except ValueError as error:
            raise InvalidArgumentError(f"the query cannot be read: {error}") from None

    @property
    def token(self) -> bytes:
        """Empty: there is none, or more than one."""
        given = self._given.get("token", [""])
        return given[0].encode("utf-8", "surrogatepass") if len(given) == 1 else b""

    def check(self, *known: str) -> None:
        for name, values in self._given.items():
            if name not in (*known, "token"):
                there = ", ".join(known) or "token alone"
                raise InvalidArgumentError(f"there is no argument {name!r} here; there is {there}")
            if len(values) > 1:
                raise InvalidArgumentError(f"{name} is given {len(values)} times")

    def has(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str, default: str | None = None) -> str:
        if name in self._given:
            return self._given[name][0]
        if default is None:
            raise InvalidArgumentError(f"the argument {name} is missing")
        return default

    def step(self, name: str) -> int:
        """A step as a store's index takes it."""
        text = self.text(name)
        if text == "latest":
            return -1
        if not text.isascii() or not text.isdecimal() or len(text) > 19:
            raise InvalidArgumentError(f'{name} must be a step\'s number or "latest", not {text!r}')
        return int(text)

    def number(self, name: str) -> float | None:
        text = self.text(name, "")
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidArgumentError(f"{name} must be a number, not {text!r}")
        return number

    def bins(self) -> int:
        text = self.text("bins", "") or str(BINS_MAX)
        is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(BINS_MAX))
        if not is_short or not 1 <= int(text) <= BINS_MAX:
            raise InvalidArgumentError(f"bins must be 1 to {BINS_MAX}, not {text!r}")
        return int(text)


def _json(document: dict[str, Any]) -> _Answer:
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return _Answer("200 OK", "application/json", text.encode())


def _failed(status: str, message: str) -> _Answer:
    text = json.dumps({"schema": SCHEMA, "error": {"message": message}})
    return _Answer(status, "application/json", text.encode(), (
        [("Allow", "GET, HEAD")] if status.startswith("405") else []))


def _name_in(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _names_of(host: str) -> Callable[[str], bool]:
    """Says which names are this server's. A page of another site can have its own name lead here,
    but not an address. The port may be a tunnel's."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    names = {host.lower()}
    if address is None or address.is_loopback:
        names.update(_LOCAL)
        return names.__contains__
    names.update([*_LOCAL, socket.gethostname().lower(), socket.getfqdn().lower()])
    return lambda name: name in names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
