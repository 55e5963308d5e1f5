# SPDX-License-Identifier: Apache-2.0
"""The server of a run, asked over HTTP: its numbers against NumPy's of the loaded arrays, and what
it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
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
from typing import Any

import jax
import jsonschema
import ml_dtypes
import numpy as np
import pytest

import stepwell
from stepwell._printed import selection
from stepwell._report import document as documents
from stepwell._report import sampling
from stepwell._report.details import changes_of, leaf_of

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
                                       errors="surrogateescape")
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


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def fill(path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    with stepwell.open(path, statistics=True) as store:
        for step in range(3):
            holes = noise(300, 500, seed=step)
            holes[::7, ::11], holes[3, 4], holes[5] = np.nan, -np.inf, np.inf
            store.save(step, {
                "w": {"plain": noise(200, 300, seed=step), "holes": holes, "same": noise(40)},
                "deep": noise(4, 5, 6, 7, seed=step), "line": noise(1000, seed=step),
                "scalar": np.float32(step), "none": np.zeros((0, 3), np.float32),
                "half": noise(30, 30, seed=step).astype(ml_dtypes.bfloat16),
                "small": rng.integers(-8, 8, (20, 20)).astype(ml_dtypes.int4),
                "flags": rng.integers(0, 2, 500).astype(bool),
                "wave": noise(50, seed=step) + 1j * noise(50, seed=9),
                "wide": np.array([1e308, -1e308, 0.5, step]), "one": np.full(9, 2.5),
                "key": jax.random.key(step), "n": step, "name": "<b>run</b>",
                **({"late": np.arange(4)} if step == 2 else {"early": 1})}).result()


ARRAYS = ["w/plain", "w/holes", "deep", "line", "scalar", "none", "half", "small", "flags", "wave",
          "wide", "one"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("run") / "store"
    fill(path)
    return path


def as_float(array: np.ndarray) -> np.ndarray:
    return (np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else
            array.astype(np.float64))


def check_histogram(found: dict[str, Any], array: np.ndarray, bins: int, low: float | None = None,
                    high: float | None = None) -> None:
    wide = as_float(array).reshape(-1)
    finite = wide[np.isfinite(wide)]
    assert found["nan"] == int(np.isnan(wide).sum())
    assert found["infinite"] == int(np.isinf(wide).sum())
    assert found["counted"] == found["of"] == wide.size and found["note"] is None
    if not finite.size:
        assert found["counts"] == []
        return
    low = float(finite.min()) if low is None else low
    high = float(finite.max()) if high is None else high
    scale = 1 if math.isfinite(high - low) else 0.25  # numpy.histogram overflows there
    counts, edges = np.histogram(finite * scale, bins, (low * scale, high * scale))
    assert found["counts"] == counts.tolist()
    np.testing.assert_allclose(found["edges"], edges / scale, rtol=1e-12)
    assert found["below"] == int((finite < low).sum())
    assert found["above"] == int((finite > high).sum())
    assert sum(found["counts"]) + found["below"] + found["above"] == finite.size


def check_heat_map(found: dict[str, Any], array: np.ndarray) -> None:
    wide = as_float(array)
    wide = wide.reshape(1, -1) if wide.ndim == 1 else wide
    assert found["shape"] == list(wide.shape) and found["note"] is None
    rows, columns = found["row_edges"], found["column_edges"]
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (0, wide.shape[0], 0, wide.shape[1])
    assert len(rows) - 1 == min(128, wide.shape[0])
    for i in range(len(rows) - 1):
        for k in range(len(columns) - 1):
            block = wide[rows[i]:rows[i + 1], columns[k]:columns[k + 1]]
            finite = block[np.isfinite(block)]
            got = [found[name][i][k] for name in ("mean", "min", "max")]
            if not finite.size:
                assert block.size and got == [None] * 3
                continue
            with np.errstate(over="ignore"):
                want = [finite.mean(), finite.min(), finite.max()]
            assert got == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ARRAYS)
def test_elements_of_every_kind(filled: pathlib.Path, name: str) -> None:
    with stepwell.open(filled, "r") as store:
        array = np.asarray(store[1][name])
        found = json.loads(json.dumps(leaf_of(store, 1, name, "", 20), allow_nan=False))
        assert (found["dtype"], found["shape"]) == (array.dtype.name, list(array.shape))
        check_histogram(found["histogram"], array, 20)
        plane = array[(0,) * (array.ndim - 2)] if array.ndim > 2 else array
        if plane.ndim == 0 or not plane.size:
            assert found["heatmap"] is None
        else:
            check_heat_map(found["heatmap"], plane)
        if array.size > 4096:
            assert found["values"] is None
        else:
            assert found["values"]["shape"] == list(array.shape)
            check_values(found["values"]["values"], array)
        info = store.tree(1)[name].statistics
        if info is not None and not info.nonfinite and name != "wide":
            assert found["statistics"] == info._asdict()


def check_values(found: list[Any], array: np.ndarray) -> None:
    flat = array.reshape(-1)
    if array.dtype.kind == "c":
        assert [complex(*each) for each in found] == pytest.approx(flat.tolist(), rel=1e-6)
        return
    back = np.array([float(each) for each in found]).astype(array.dtype)
    np.testing.assert_array_equal(back, flat)


@pytest.mark.parametrize("index", ["3:20, ::2", "..., 7", "::-1, 5:100:3", "-1", "5:5, :", ":, -3:"])
def test_slices(filled: pathlib.Path, index: str) -> None:
    with stepwell.open(filled, "r") as store:
        array = np.asarray(store[2]["w/holes"])[eval(f"np.s_[{index}]")]
        found = leaf_of(store, 2, "w/holes", index, 7)
        check_histogram(found["histogram"], array, 7)
        if array.size:
            check_heat_map(found["heatmap"], array)
        again = leaf_of(store, 2, "w/holes", found["slice"], 7)
        assert again["histogram"] == found["histogram"] and again["slice"] == found["slice"]
        if array.size <= 4096:
            check_values(found["values"]["values"], array)


def test_a_histogram_between_ends(filled: pathlib.Path) -> None:
    with stepwell.open(filled, "r") as store:
        array = np.asarray(store[0]["w/holes"])
        for low, high in ((-0.5, 1.0), (2.0, 3.0), (-1.0, None), (None, 0.25), (50.0, 60.0)):
            found = leaf_of(store, 0, "w/holes", "", 9, low, high)["histogram"]
            check_histogram(found, array, 9, low, high)
        beyond = leaf_of(store, 0, "w/holes", "", 9, 50.0)["histogram"]
        assert beyond["below"] == np.isfinite(array).sum() and sum(beyond["counts"]) == 0


def test_values_that_are_no_arrays(filled: pathlib.Path) -> None:
    with stepwell.open(filled, "r") as store:
        assert leaf_of(store, 1, "n", "")["value"] == "1"
        found = leaf_of(store, -1, "name", "")
        assert (found["kind"], found["value"], found["step"]) == ("str", "<b>run</b>", 2)
        key = leaf_of(store, 1, "key", "")
        assert key["kind"] == "key" and key["dtype"] == "uint32"
        check_values(key["values"]["values"], np.asarray(jax.random.key_data(jax.random.key(1))))


def test_what_is_too_large_is_read_in_part(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    array = noise(256, 1024)
    with stepwell.open(path) as store:
        store.save(0, {"w": array}, chunks=stepwell.ChunkShape(4096)).result()
        monkeypatch.setattr(sampling, "READ_MAX", 10 * 4096)
        found = leaf_of(store, 0, "w", "", 10)
        assert store.stats()["last_load"]["bytes_out"] <= 10 * 4096
        part = found["histogram"]
        assert part["counted"] == 10 * 1024 and part["of"] == array.size
        assert sum(part["counts"]) == part["counted"] and "10 of 256 chunks" in part["note"]
        map_ = found["heatmap"]
        shown = [(i, k) for i, row in enumerate(map_["mean"]) for k, each in enumerate(row)
                 if each is not None]
        assert 0 < len(shown) < 128 * 128 and "10 of 256" in map_["note"]
        for i, k in shown:
            block = array[map_["row_edges"][i]:map_["row_edges"][i + 1],
                          map_["column_edges"][k]:map_["column_edges"][k + 1]]
            assert block.min() - 1e-5 <= map_["mean"][i][k] <= block.max() + 1e-5
        assert found["values"] is None
        few = leaf_of(store, 0, "w", "::8, ::64")  # few elements of many chunks
        assert few["histogram"]["counted"] == 10 * 16 and few["values"] is None


@pytest.mark.parametrize("seed", range(6))
def test_a_sample_is_what_the_slice_has_there(path: pathlib.Path, seed: int,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 60, 3))
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    with stepwell.open(path) as store:
        store.save(0, {"w": array}, chunks=stepwell.ChunkShape(int(rng.integers(4096, 20_000))))
        store.wait()
        view = store[0]["w"]
        for limit in (1, 50_000, 1 << 20):
            monkeypatch.setattr(sampling, "READ_MAX", limit)
            text = ", ".join(str(rng.choice([":", "::-1", "3::2", "0", "::3"]))
                             for _ in shape)
            taken = selection.parse(text.replace("3::2", "::2"), shape)
            whole = array[selection.index_of(taken)]
            read = sampling.sample(view, taken)
            assert read.shape == whole.shape
            for piece in read.pieces:
                at = tuple(slice(axis.start, axis.stop) for axis in piece.places)
                np.testing.assert_array_equal(piece.values, whole[at])
            if read.note is None:
                assert read.elements == whole.size
            else:
                chunk = math.prod(view.chunk_shape) * 4
                assert store.stats()["last_load"]["bytes_out"] <= max(limit, chunk)


def test_changes(filled: pathlib.Path) -> None:
    with stepwell.open(filled, "r") as store:
        want = store.changed(0, 2)
        found = changes_of(store, 0, 2)
        assert {row["path"] for row in found["changed"]} == set(want.changed)
        for row in found["changed"]:
            leaf = want.changed[row["path"]]
            assert (row["chunks_changed"], row["chunks"], row["nbytes_changed"], row["item"]) == (
                leaf.chunks_changed, leaf.chunks, leaf.nbytes_changed, leaf.item)
            assert not row["unsure"]
        sizes = [row["nbytes_changed"] for row in found["changed"]]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] == 300 * 500 * 4
        assert [row["path"] for row in found["added"]] == [*want.added] == ["late"]
        assert [row["path"] for row in found["removed"]] == [*want.removed] == ["early"]
        assert (found["unchanged"], found["left_out"]) == (want.unchanged, 0)


def test_changes_that_only_reading_could_tell(store: stepwell.Store) -> None:
    array = noise(64, 64)
    store.save(0, {"w": array})
    store.save(1, {"w": array}, chunks=stepwell.ChunkShape(4096)).result()
    before = store.stats()["last_load"]
    (row,) = changes_of(store, 0, 1)["changed"]
    assert row["unsure"] and row["path"] == "w" and store.stats()["last_load"] == before


# ---- HTTP ---------------------------------------------------------------------------------------


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
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "10.0.0.1"):
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
    ("/leaf", {"step": 1, "path": "line", "low": "nan"}, 400, "low must be a number"),
    ("/leaf", {"step": 1, "path": "line", "low": 2, "high": 1}, 400, "below"),
    ("/leaf", {"step": 1, "path": "line", "what": 1}, 400, "no argument 'what'"),
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
    from concurrent.futures import ThreadPoolExecutor

    server = serve(filled)
    with ThreadPoolExecutor(16) as pool:
        documents_ = [*pool.map(lambda _: server.get("/document.json")["made"], range(40))]
        found = [*pool.map(lambda i: server.get("/leaf", step=i % 3, path="w/plain"), range(40))]
    assert len(set(documents_)) <= 2  # made once for all
    for i, each in enumerate(found):
        check_histogram(each["histogram"], noise(200, 300, seed=i % 3), 100)


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
        assert "Address already in use" in failed[1] and failed[1].startswith("stepwell: ")
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
    assert done.returncode == 1 and "pip install 'stepwell[serve]'" in done.stderr
