# SPDX-License-Identifier: Apache-2.0
"""The server of a run, asked over HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import numpy as np
import pytest
from test_report_details import check_histogram, fill, noise

import stepwell
from stepwell._report import document as documents

URL = re.compile(r"(http://[^/]+)/\?token=([\w-]{40,})\n")


class Server:
    """`python -m stepwell serve`, until it is stopped."""

    def __init__(self, path: pathlib.Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", "serve", *options, "--", str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = URL.fullmatch(self.line)
        self.base, self.token = (found[1], found[2]) if found else ("", "")

    def get(self, place: str, **query: object) -> Any:
        with self.open(place, **query) as response:
            return json.load(response)

    def open(self, place: str, method: str = "GET", headers: dict[str, str] | None = None,
             token: str | None = None, **query: object) -> Any:
        given = urllib.parse.urlencode({"token": token or self.token, **query},
                                       errors="surrogatepass")
        request = urllib.request.Request(f"{self.base}{place}?{given}", method=method,
                                         headers=headers or {})
        return urllib.request.urlopen(request, timeout=30)

    def refused(self, place: str, **options: Any) -> tuple[int, str]:
        with pytest.raises(urllib.error.HTTPError) as info:
            self.open(place, **options).close()
        with info.value as response:
            body = response.read()
            return response.code, json.loads(body)["error"]["message"] if body else ""

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*arguments: Any) -> Server:
        started.append(Server(*arguments))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("run") / "store"
    fill(path)
    return path


def document_with(server: Server, holds: Callable[[dict[str, Any]], bool]
                  ) -> tuple[str, dict[str, Any]]:
    """Its ETag, and itself: a new one comes a moment after the step."""
    while True:
        with server.open("/document.json") as response:
            tag, made = response.headers["ETag"], json.load(response)
        if holds(made):
            return tag, made


def test_a_run_that_grows(path: pathlib.Path, serve: Callable[..., Server]) -> None:
    with stepwell.open(path) as store:
        server = serve(path)
        assert server.get("/document.json")["steps"]["number"] == []
        for step in range(3):
            store.save(step, {"w": noise(30, step + 1)}, metrics={"loss": 1 / (step + 1)}).result()
            tag, made = document_with(server, lambda made: len(made["steps"]["number"]) > step)
            jsonschema.Draft202012Validator(documents.schema()).validate(made)
            assert made["live"] is True and made["steps"]["number"] == [*range(step + 1)]
            with pytest.raises(urllib.error.HTTPError) as info:
                server.open("/document.json", headers={"If-None-Match": tag})
            with info.value as response:
                assert response.code == 304 and response.read() == b""
        found = server.get("/leaf", step=2, path="w", bins=5)
        check_histogram(found["histogram"], noise(30, 3), 5)
        assert server.get("/leaf", step="latest", path="w", bins=5) == found
        assert server.get("/changed", a=0, b=2)["changed"][0]["after"] == "float32[30, 3]"
        store.taint(2, "bad")
        document_with(server, lambda made: made["steps"]["taint"] == {"2": "bad"})
        store.delete(0)
        assert server.refused("/leaf", step=0, path="w")[0] == 404
        document_with(server, lambda made: made["steps"]["number"] == [1, 2])


def test_steps_that_go_while_they_are_looked_at(path: pathlib.Path, serve: Callable[..., Server]
                                                ) -> None:
    with stepwell.open(path, keep=stepwell.policy.LatestN(2), statistics=True) as store:
        store.save(0, {"w": noise(40, 40)}).result()
        server = serve(path)
        with ThreadPoolExecutor(3) as pool:
            saved = pool.submit(lambda: [store.save(step, {"w": noise(40, 40, seed=step)}).result()
                                         for step in range(1, 300)])
            while not saved.done():
                made = server.get("/document.json")
                assert len(made["steps"]["number"]) <= 3 and made["health"]["damaged"] == []
                for step in made["steps"]["number"]:
                    try:
                        found = server.get("/leaf", step=step, path="w", bins=3)
                    except urllib.error.HTTPError as error:
                        assert error.code == 404
                        error.close()
                    else:
                        check_histogram(found["histogram"], noise(40, 40, seed=step), 3)
            saved.result()


def test_the_page(filled: pathlib.Path, serve: Callable[..., Server]) -> None:
    server = serve(filled)
    with server.open("/") as response:
        text = response.read().decode()
        headers = response.headers
    assert headers["Content-Type"] == "text/html; charset=utf-8" and "</html>" in text
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Server"] is None and server.token not in text
    with server.open("/", method="HEAD") as response:
        assert response.read() == b"" and response.headers["Content-Length"] == headers[
            "Content-Length"]
    with server.open("/", headers={"Accept-Encoding": "gzip"}) as response:
        assert response.headers["Content-Encoding"] == "gzip"


def test_what_is_refused(filled: pathlib.Path, serve: Callable[..., Server]) -> None:
    server = serve(filled)
    for place in ("/", "/document.json", "/leaf", "/nothing"):
        for token in ("x", server.token[:-1], server.token + "x", "\u00e9", "\udcff"):
            status, message = server.refused(place, token=token)
            assert status == 403 and "token" in message
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(server.base + "/", timeout=30)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{server.base}/?token={server.token}&token=x", timeout=30)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert server.refused("/", method=method)[0] == 405
    port = server.base.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "10.1.1.1"):
        status, message = server.refused("/", headers={"Host": host})
        assert status == 421 and "address" in message
    for host in (f"localhost:{port}", "localhost:9000", "127.0.0.1", f"[::1]:{port}"):
        server.open("/", headers={"Host": host}).close()
    assert server.refused("/nothing")[0] == 404
    assert server.refused("/../../etc/passwd")[0] == 404


@pytest.mark.parametrize(("place", "query", "status", "words"), [
    ("/leaf", {}, 400, "step is missing"),
    ("/leaf", {"step": 1}, 400, "path is missing"),
    ("/leaf", {"step": "x", "path": "n"}, 400, "number"),
    ("/leaf", {"step": "-1", "path": "n"}, 400, "number"),
    ("/leaf", {"step": "9" * 19, "path": "n"}, 400, ""),
    ("/leaf", {"step": 7, "path": "n"}, 404, "no step 7"),
    ("/leaf", {"step": 1, "path": "no/where"}, 404, "no/where"),
    ("/leaf", {"step": 1, "path": "w"}, 400, "one array or value"),
    ("/leaf", {"step": 1, "path": "w/*"}, 400, "one array or value"),
    ("/leaf", {"step": 1, "path": "line", "slice": "1, 2"}, 400, "slice names 2 axes"),
    ("/leaf", {"step": 1, "path": "line", "slice": "[x]"}, 400, "not an index"),
    ("/leaf", {"step": 1, "path": "line", "slice": "1000"}, 400, "out of bounds"),
    ("/leaf", {"step": 1, "path": "line", "bins": 101}, 400, "1 to 100"),
    ("/leaf", {"step": 1, "path": "line", "bins": "x"}, 400, "1 to 100"),
    ("/leaf", {"step": 1, "path": "line", "bins": "00000000123"}, 400, "1 to 100"),
    ("/leaf", {"step": 1, "path": "line", "low": "nan"}, 400, "low must be a number"),
    ("/leaf", {"step": 1, "path": "line", "low": 2, "high": 1}, 400, "below"),
    ("/leaf", {"step": 1, "path": "line", "what": 1}, 400, "no argument 'what'"),
    ("/leaf", {"step": 1, "path": "line", "item": "opt"}, 404, "item 'opt'"),
    ("/changed", {"a": 1}, 400, "b is missing"),
    ("/changed", {"a": 1, "b": 70}, 404, "no step 70"),
    ("/document.json", {"step": 1}, 400, "no argument"),
])
def test_bad_queries(running: Server, place: str, query: dict[str, Any], status: int, words: str
                     ) -> None:
    found, message = running.refused(place, **query)
    assert found == status and words in message and "--slice" not in message


@pytest.fixture(scope="module")
def running(filled: pathlib.Path) -> Iterator[Server]:
    server = Server(filled)
    yield server
    assert server.stop() == (0, "", "")


def test_hostile_names(path: pathlib.Path, serve: Callable[..., Server]) -> None:
    names = ["<script>alert(1)</script>", "a b&c=d?e#f", "\u202e", "x" * 5000, "日" * 3000, "\x01"]
    with stepwell.open(path) as store:
        store.save(0, {name: np.arange(i + 2.0) for i, name in enumerate(names)}).result()
        paths = [*store.tree(0)]
    server = serve(path)
    found = [server.get("/leaf", step=0, path=each) for each in paths]
    assert sorted(each["shape"][0] for each in found) == [*range(2, len(names) + 2)]
    assert [each["path"] for each in found] == paths


def test_damage(path: pathlib.Path, serve: Callable[..., Server]) -> None:
    array = np.random.default_rng(0).integers(0, 255, 5000).astype(np.uint8)
    with stepwell.open(path, codec="raw") as store:
        store.save(0, {"w": array, "b": 1}).result()
    for segment in (path / "segments").iterdir():
        data = segment.read_bytes()
        segment.write_bytes(data.replace(array[:100].tobytes(), array[1:101].tobytes()))
    server = serve(path)
    status, message = server.refused("/leaf", step=0, path="w")
    assert status == 500 and "damaged" in message and ".seg" in message
    assert server.get("/leaf", step=0, path="b")["value"] == "1"


def test_many_ask_at_once(filled: pathlib.Path, serve: Callable[..., Server]) -> None:
    server = serve(filled)
    with ThreadPoolExecutor(16) as pool:
        documents_ = [*pool.map(lambda _: server.get("/document.json")["made"], range(40))]
        found = [*pool.map(lambda i: server.get("/leaf", step=i % 3, path="w/plain"), range(40))]
    assert len(set(documents_)) <= 2  # made once for all
    for i, each in enumerate(found):
        check_histogram(each["histogram"], noise(200, 300, seed=i % 3), 100)


def test_requests_that_wait_are_no_news(filled: pathlib.Path, serve: Callable[..., Server]) -> None:
    server = serve(filled)
    host, port = server.base.removeprefix("http://").split(":")
    ask = f"GET /leaf?token={server.token}&step=0&path=w/plain HTTP/1.1\r\nHost: {host}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
                 for _ in range(24)]
        for each in asked:
            each.sendall(ask.encode())
        for each in asked:
            assert each.recv(100).startswith(b"HTTP/1.1 200")
    assert server.stop() == (0, "", "")


def test_connections_that_ask_nothing_end(filled: pathlib.Path,
                                          serve: Callable[..., Server]) -> None:
    """waitress has room for 100; opening them takes no token."""
    server = serve(filled)
    host, port = server.base.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(110):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        server.open("/").close()


def test_a_request_that_is_none(filled: pathlib.Path, serve: Callable[..., Server]) -> None:
    server = serve(filled)
    host, port = server.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall(b"NONSENSE\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.0 400")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        connection.request("GET", "/" + "x" * 300_000)
        assert connection.getresponse().status in (400, 431)
    server.open("/").close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it(filled: pathlib.Path, serve: Callable[..., Server], number: int) -> None:
    server = serve(filled)
    server.open("/").close()
    assert server.stop(number) == (0, "", "")
    with pytest.raises(urllib.error.URLError):
        server.open("/")


def test_other_addresses(filled: pathlib.Path, serve: Callable[..., Server]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = serve(filled, "--port", str(port)).process.communicate(timeout=30)
        assert failed[1].startswith("stepwell: cannot serve at 127.0.0.1")
        assert "Address already in use" in failed[1]
    server = serve(filled, "--host", "::1")
    assert server.base.startswith("http://[::1]:")
    server.open("/").close()
    server = serve(filled, "--host", "0.0.0.0")
    server.base = server.base.replace("0.0.0.0", "127.0.0.1")
    server.open("/", headers={"Host": "192.0.2.7"}).close()  # an address of this machine, perhaps
    server.open("/", headers={"Host": socket.gethostname()}).close()
    assert server.refused("/", headers={"Host": "evil.example"})[0] == 421


def test_no_store_and_no_waitress(filled: pathlib.Path, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "stepwell", "serve"]
    done = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True,
                          check=False, timeout=60)
    assert done.returncode == 3 and done.stdout == "" and not (tmp_path / "none").exists()
    (tmp_path / "waitress.py").write_text("raise ImportError\n")
    paths = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run([*command, str(filled)], capture_output=True, text=True, check=False,
                          timeout=60, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 1 and "pip install 'waitress>=3'" in done.stderr
