# SPDX-License-Identifier: Apache-2.0
"""`stepwell report` and the options of `stepwell serve`."""

import base64
import gzip
import json
import pathlib
import re
import signal
import stat
import subprocess
import urllib.request
from typing import Any

import numpy as np
import pytest
import stepwell
from program import PROGRAM, error, ok, run
from stepwell._report.document import document_of


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run", statistics=True) as writer:
        for step in range(5):
            writer.save(step, {"w": np.full((4, 3), step, np.float32), "</script>": step},
                        metrics={"loss": 1 / (step + 1)})
    return tmp_path / "run"


def expected(store: pathlib.Path) -> dict[str, Any]:
    with stepwell.open(store, "r") as reader:
        return document_of(reader)


def same_but_for_time(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {**one, "made": ""} == {**other, "made": ""}


def document_in(page: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/gzip;base64" id="document">([^<]*)</script>',
                       page)
    assert len(found) == 1
    return dict(json.loads(gzip.decompress(base64.b64decode(found[0]))))


def test_a_page(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "run.html"
    said = ok("report", store, "-o", page)
    assert said.startswith(f"wrote {page}, ") and said.endswith("5 steps, 2 leaves\n")
    assert same_but_for_time(document_in(page.read_text()), expected(store))
    assert stat.S_IMODE(page.stat().st_mode) == stat.S_IMODE((store / "STEPWELL").stat().st_mode)


def test_the_document(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert same_but_for_time(json.loads(ok("report", store, "--json")), expected(store))
    written = tmp_path / "run.json"
    said = ok("report", store, "--json", "-o", written)
    assert said.startswith("wrote ") and same_but_for_time(
        json.loads(written.read_text()), expected(store))


def test_nothing_is_overwritten(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "run.html"
    page.write_text("mine")
    assert "--replace" in error("report", store, "-o", page, status=1)
    (tmp_path / "link").symlink_to("nowhere")
    assert "exists" in error("report", store, "-o", tmp_path / "link", status=1)
    assert page.read_text() == "mine" and (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3
    ok("report", store, "-o", page, "--replace")
    assert document_in(page.read_text())["store"]["steps"] == 5
    assert error("report", store, "-o", tmp_path, "--replace", status=1)
    assert "inside the store" in error("report", store, "-o", store / "x.html", status=2)
    assert error("report", store, "-o", tmp_path / "no/where.html", status=3)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_no_report(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "-o FILE" in error("report", store, status=2)
    error("report", tmp_path / "none", "-o", tmp_path / "x.html", status=3)
    assert not (tmp_path / "none").exists() and not (tmp_path / "x.html").exists()
    result = run("report", tmp_path / "none", "--json")
    assert result.returncode == 3 and json.loads(result.stdout)["error"]["code"] == "not_found"


def test_the_directory_around_a_store(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "around" / ".stepwell") as writer:
        writer.save(1, {"x": 1})
    assert json.loads(ok("report", tmp_path / "around", "--json"))["store"]["name"] == "around"


def test_no_steps_yet(tmp_path: pathlib.Path) -> None:
    stepwell.open(tmp_path / "run").close()
    said = ok("report", tmp_path / "run", "-o", tmp_path / "run.html")
    assert said.endswith("0 steps, 0 leaves\n")


def test_beside_a_writer_and_untrusted(store: pathlib.Path) -> None:
    with stepwell.open(store) as writer:
        writer.save(9, {"x": 1}).result()
        found = json.loads(ok("report", store, "--json", "--untrusted"))
        assert found["steps"]["number"] == [0, 1, 2, 3, 4, 9]


def test_serve(store: pathlib.Path) -> None:
    with subprocess.Popen([PROGRAM, "serve", store, "--json", "--port", "0"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stderr is not None
        said = json.loads(server.stdout.readline())
        assert said["schema"] == 1 and said["store"] == str(store)
        url = said["url"].replace("/?", "/document.json?")
        with urllib.request.urlopen(url, timeout=30) as response:
            assert json.load(response)["steps"]["number"] == [*range(5)]
        server.send_signal(signal.SIGTERM)
        assert (server.wait(30), server.stdout.read(), server.stderr.read()) == (0, "", "")


def test_where_serve_cannot(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "--port" in error("serve", store, "--port", "70000", status=2)
    assert "--port" in error("serve", store, "--port", "x", status=2)
    assert error("serve", tmp_path / "none", status=3)
    said = error("serve", store, "--host", "no.such.host.invalid", status=1)
    assert "no.such.host.invalid" in said


def test_help_names_both() -> None:
    for command, words in (("report", ["--output", "--replace", "--json"]),
                           ("serve", ["--host", "--port", "127.0.0.1"])):
        said = ok("help", command)
        assert all(word in said for word in words) and f"stepwell {command} run1" in said
