# SPDX-License-Identifier: Apache-2.0
"""The program `stepwell`, run as a user runs it: output, JSON documents, exit codes."""

import json
import os
import pathlib
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import stepwell
from program import PROGRAM, cat_here, document, error, ok, parsed_document, run

MARK = np.random.default_rng(1).integers(0, 256, 8192, dtype=np.uint8)  # does not compress
LONG = "x" * 5000


def state(step: int) -> dict[str, Any]:
    return {
        "params": {
            "w": np.arange(128 * 64, dtype=np.float32).reshape(128, 64) + step,
            "b": np.array([0.1, -0.0, np.nan, np.inf, 1e-8], np.float32),
            "a/b": np.array([[1, 2], [3, 4]], np.int64),
            "layers": [{"k": np.ones(3, ml_dtypes.bfloat16)}, {"k": np.zeros((0, 4))}],
        },
        "mark": MARK,
        "epoch": 3,
        "big": 2**70,
        "rate": 0.1,
        "name": "a\tb\n",
        "flag": True,
        "none": None,
        "raw": b"\x00a'",
        "long": LONG,
        "empty": {},
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    path = tmp_path_factory.mktemp("cli") / "run1"
    with stepwell.open(path) as writer:
        for step in (1, 2, 10):
            writer.save(step, state(step), metadata={"note": "hi"}, metrics={"loss": 0.5}).result()
    yield path


@pytest.fixture(scope="module")
def items_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    path = tmp_path_factory.mktemp("cli") / "run2"
    with stepwell.open(path) as writer:
        writer.save(5, items={"params": {"w": np.ones(3)}, "dataset": {"epoch": 3}})
    yield path


# ---- ls -----------------------------------------------------------------------------------------


def test_ls_prints_one_line_a_step(store: pathlib.Path) -> None:
    lines = ok("ls", store).splitlines()
    assert lines[0].split() == "STEP COMMITTED ITEMS LEAVES SIZE STORED RATIO OWN loss".split()
    assert all(line.split()[-1] == "0.5" for line in lines[1:])
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "10"]
    assert all(" state " in line for line in lines[1:])


def test_ls_of_the_last_steps(store: pathlib.Path) -> None:
    every = ok("ls", store).splitlines()
    assert len(every) == 4
    assert ok("ls", "-n", 1, store).splitlines()[1:] == every[3:]
    assert ok("ls", store, "--last", 7).splitlines() == every
    assert [step["step"] for step in document("ls", store, "--last", 1)["steps"]] == [10]
    for wrong in ("0", "-1", "x"):
        assert "--last" in error("ls", store, "--last", wrong, status=2)


def test_show_of_the_paths_alone(store: pathlib.Path) -> None:
    paths = ok("show", store, "--paths").splitlines()
    assert [entry["path"] for entry in document("show", store)["entries"]
            if entry["kind"] != "node"] == paths
    for path in paths:
        assert ok("show", store, "latest", path, "--paths").splitlines() == [path]


def test_ls_shows_metrics_that_are_not_finite(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(1, 1, metrics={"acc": 0.5, "loss": float("nan"), "up": float("inf"),
                                   "down": -float("inf")}, metadata={"loss": float("nan")})
    header, line = ok("ls", tmp_path / "run").splitlines()
    assert header.split()[-4:] == ["acc", "down", "loss", "up"]
    assert line.split()[-4:] == ["0.5", "-Infinity", "NaN", "Infinity"]
    metrics = {"acc": 0.5, "loss": "NaN", "up": "Infinity", "down": "-Infinity"}
    assert document("ls", tmp_path / "run")["steps"][0]["metrics"] == metrics
    shown = document("show", tmp_path / "run", "latest")["step"]
    assert (shown["metrics"], shown["metadata"]) == (metrics, {"loss": "NaN"})


def test_ls_json(store: pathlib.Path) -> None:
    before_ns = time.time_ns()
    steps = document("ls", store)["steps"]
    assert [step["step"] for step in steps] == [1, 2, 10]
    assert steps[0]["items"] == ["state"]
    assert (steps[0]["metrics"], steps[0]["pinned"]) == ({"loss": 0.5}, False)
    assert steps[0]["leaves"] == 14
    assert steps[0]["logical_bytes"] > 128 * 64 * 4 + MARK.nbytes
    assert steps[0]["stored_bytes"] > 0
    committed = np.datetime64(steps[2]["time"].removesuffix("Z"), "ns").astype(int)
    assert before_ns - 600 * 10**9 < committed < before_ns


def test_a_step_says_what_it_owns(tmp_path: pathlib.Path) -> None:
    frozen = np.random.default_rng(1).standard_normal(100_000, np.float32)
    with stepwell.open(tmp_path / "run") as store:
        store.save(1, {"frozen": frozen, "n": 1}).result()
        assert "OWN" not in ok("ls", tmp_path / "run")
        store.save(2, {"frozen": frozen, "n": 2}).result()
    first, second = document("ls", tmp_path / "run")["steps"]
    assert first["owned_bytes"] == first["stored_bytes"] >= frozen.nbytes
    assert second["owned_bytes"] == 1 and second["stored_bytes"] == first["stored_bytes"]
    header, _, line = ok("ls", tmp_path / "run").splitlines()
    assert header.split()[-1] == "OWN" and line.split()[-2:] == ["1", "B"]
    assert document("show", tmp_path / "run", "2")["step"]["owned_bytes"] == 1
    assert ", 1 B its own; deleting it frees 0 B" in ok("show", tmp_path / "run", "2")
    assert document("retention", tmp_path / "run")["steps"][0]["frees_bytes"] == 0
    ok("rm", tmp_path / "run", "1")
    shown = document("show", tmp_path / "run", "2")["step"]
    assert shown["frees_bytes"] == first["stored_bytes"] - 1
    assert "deleting it frees 390.6 KiB" in ok("show", tmp_path / "run", "2")


def test_ls_of_a_store_without_steps(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "new"):
        pass
    result = run("ls", tmp_path / "new")
    assert (result.returncode, result.stdout) == (0, "")
    assert "has no steps yet" in result.stderr
    assert document("ls", tmp_path / "new")["steps"] == []
    assert "has no steps yet" in error("show", tmp_path / "new", status=3)


def test_ls_beside_a_live_writer(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "live") as writer:
        writer.save(7, {"w": np.ones(4)}).result()
        assert [step["step"] for step in document("ls", tmp_path / "live")["steps"]] == [7]
        writer.save(8, {"w": np.ones(4)}).result()
        assert [step["step"] for step in document("ls", tmp_path / "live")["steps"]] == [7, 8]


# ---- show ---------------------------------------------------------------------------------------


def test_show_prints_the_tree_of_the_newest_step(store: pathlib.Path) -> None:
    text = ok("show", store)
    assert text.startswith("step 10, committed 20")
    assert '"note"' in text and '"loss"' in text
    assert text == ok("show", store, "latest") == ok("show", store, 10)
    lines = {line.split()[0]: line for line in text.splitlines()[3:]}
    assert re.search(r"^  w +float32\[128, 64\] +32\.0 KiB ", lines["w"])
    assert re.search(r"^params/ +dict +32\.1 KiB .* 5 leaves$", lines["params/"])
    assert re.search(r"^  a/b +int64\[2, 2\] +32 B ", lines["a/b"])
    assert re.search(r"^    1/ +dict ", lines["1/"])
    assert re.search(r"^epoch +int 3 .*inline$", lines["epoch"])
    assert re.search(r"^none +None ", lines["none"])
    assert re.search(r"^name +str a\\tb\\n ", lines["name"])
    assert re.search(r"^empty/ +dict, empty ", lines["empty/"])


def test_show_of_a_subtree_and_of_a_leaf(store: pathlib.Path) -> None:
    lines = ok("show", store, 10, "params/layers").splitlines()
    assert [line.split()[0] for line in lines] == ["layers/", "0/", "k", "1/", "k"]
    assert lines == ok("show", store, 10, "state/params/layers/").splitlines()
    (leaf,) = ok("show", store, 10, r"params/a\/b").splitlines()
    assert leaf.startswith("a/b  int64[2, 2]")


def test_show_spells_the_kind_of_keys_as_python_does(tmp_path: pathlib.Path) -> None:
    jax = pytest.importorskip("jax")
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(0, {"key": jax.random.key(0), "count": 1}).result()
        with pytest.raises(stepwell.MismatchError, match="stored key<threefry2x32> uint32"):
            writer.load(0, like={"key": 1, "count": 1})
    assert re.search(r"^key +key<threefry2x32> uint32\[2\] ", ok("show", tmp_path / "run"), re.M)


def test_show_json(store: pathlib.Path) -> None:
    shown = document("show", store, "latest", "params")
    assert shown["step"]["step"] == 10
    assert shown["step"]["metadata"] == {"note": "hi"}
    assert shown["step"]["metrics"] == {"loss": 0.5}
    assert shown["path"] == "params"
    entries = {entry["path"]: entry for entry in shown["entries"]}
    w = entries["params/w"]
    assert (w["kind"], w["dtype"], w["shape"]) == ("array", "float32", [128, 64])
    assert w["logical_bytes"] == 128 * 64 * 4
    assert w["chunks"] >= 1 and w["codec"] in ("raw", "blosc-lz4")
    assert r"params/a\/b" in entries
    assert entries["params/layers/1/k"]["shape"] == [0, 4]


def test_show_with_several_items_has_them_first(items_store: pathlib.Path) -> None:
    entries = document("show", items_store)["entries"]
    assert {e["path"] for e in entries if e["kind"] != "node"} == {"params/w", "dataset/epoch"}
    assert "epoch   int 3" in ok("show", items_store, 5, "dataset")
    assert ok("cat", items_store, 5, "dataset/epoch") == "3\n"


# ---- cat ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("epoch", "3", 3),
        ("big", str(2**70), str(2**70)),
        ("rate", "0.1", 0.1),
        ("name", "a\tb\n", "a\tb\n"),
        ("flag", "True", True),
        ("none", "None", None),
        ("raw", repr(b"\0a'"), {"base64": "AGEn"}),
        ("long", LONG, LONG),
        ("state/epoch", "3", 3),
        (r"params/a\/b", "[[1 2]\n [3 4]]", [[1, 2], [3, 4]]),
        ("params/layers/0/k", "[1 1 1]", [1.0, 1.0, 1.0]),
        ("params/layers/1/k", "[]", []),
        (
            "params/b",
            "[ 1.e-01 -0.e+00     nan     inf  1.e-08]",
            [0.1, -0.0, "NaN", "Infinity", 1e-08],
        ),
    ],
)
def test_cat(store: pathlib.Path, path: str, text: str, value: Any) -> None:
    assert ok("cat", store, 10, path) == text + "\n"
    printed = parsed_document(cat_here(store, 10, path, "--json"))["value"]
    assert printed == value
    assert json.dumps(printed) == json.dumps(value)  # tells -0.0 from 0, 1 from True


def test_cat_prints_the_corners_of_a_large_array(store: pathlib.Path) -> None:
    lines = ok("cat", store, 10, "params/w").splitlines()
    assert lines[0] == "[[  10.   11.   12. ...   71.   72.   73.]"
    assert lines[3] == " ..."
    assert lines[-1] == " [8138. 8139. 8140. ... 8199. 8200. 8201.]]"
    summary = document("cat", store, 10, "params/w")
    assert summary["whole"] is False
    assert "value" not in summary
    whole = document("cat", store, 10, "params/w", "--full")
    assert whole["whole"] is True
    assert np.array_equal(np.array(whole["value"]), state(10)["params"]["w"])
    assert " 5000. " in ok("cat", store, 10, "params/w", "--full").replace("\n", " ")


def test_cat_full_prints_while_it_reads(tmp_path: pathlib.Path) -> None:
    arrays = {"a": np.arange(150_000, dtype=np.int32).reshape(3, 50_000),
              "a2": np.arange(3), "b": np.zeros(16_000_000)}
    with stepwell.open(tmp_path / "run") as opened:
        opened.save(1, arrays).result()
    text = ok("cat", tmp_path / "run", 1, "a", "--full")
    assert text.startswith("[[   0    1 ") and text.endswith(" 149999]]\n")
    assert [int(word) for word in text.replace("[", " ").replace("]", " ").split()] == [
        *range(150_000)]
    assert ok("cat", tmp_path / "run", 1, "a*", "--full").startswith("a:\n[[   0 ")

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (3 * arrays["b"].nbytes,) * 2)  # not for its text

    command = [PROGRAM, "cat", tmp_path / "run", "1", "b", "--full"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=little_memory) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"[0. 0. 0. ")
        process.stdout.close()
    assert process.returncode == 0


def number(value: Any) -> Any:
    """Back from JSON."""
    if isinstance(value, list):
        return complex(number(value[0]), number(value[1]))
    return float(value) if isinstance(value, str) else value


SMALL = [
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
        "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int2 int4 uint2 uint4 bfloat16"
    ).split()
]


@pytest.mark.parametrize("dtype", [*SMALL, *map(np.dtype, "?bBhHiIlLefdFD")], ids=str)
def test_cat_prints_every_dtype_as_numbers(tmp_path: pathlib.Path, dtype: np.dtype[Any]) -> None:
    if dtype.name.removeprefix("u") in ("int2", "int4"):
        bits = int(dtype.name[-1])
        low = 0 if dtype.name.startswith("u") else -(2 ** (bits - 1))
        array = np.arange(low, low + 2**bits).astype(dtype)
    elif dtype.itemsize == 1:
        count = {"bool": 2, "float4_e2m1fn": 16}.get(dtype.name, 256)
        array = np.arange(count, dtype=np.uint8).view(dtype)
    else:
        random = np.random.default_rng(3)
        array = random.integers(0, 256, 4096 * dtype.itemsize, dtype=np.uint8).view(dtype)
    with stepwell.open(tmp_path / "dtypes") as writer:
        writer.save(0, {"x": array})
    printed = parsed_document(cat_here(tmp_path / "dtypes", 0, "x", "--full", "--json"))
    assert printed["dtype"] == dtype.name
    found = np.array([number(value) for value in printed["value"]])
    if dtype.kind in "biu":
        assert [int(value) for value in printed["value"]] == [int(value) for value in array]
    elif dtype.kind == "c":
        assert np.array_equal(found.astype(dtype), array, equal_nan=True)
    else:
        with np.errstate(invalid="ignore", over="ignore"):  # signalling NaNs
            wide = array.astype(np.float64)
            back = found.astype(np.float32) if dtype == np.float32 else found
        assert np.array_equal(back.astype(np.float64), wide, equal_nan=True)
        assert np.array_equal(np.signbit(found)[~np.isnan(wide)], np.signbit(wide)[~np.isnan(wide)])


# ---- verify -------------------------------------------------------------------------------------


def test_verify_of_a_sound_store(store: pathlib.Path) -> None:
    assert re.search(r"^3 steps, 42 leaves, .* read: no damage\n$", ok("verify", store))
    report = document("verify", store)
    assert (report["ok"], report["steps"], report["problems"]) == (True, 3, [])
    assert report["bytes"] > 3 * MARK.nbytes
    assert document("verify", store, "--step", 2)["steps"] == 1
    assert document("verify", store, "--step", "latest")["steps"] == 1


def test_a_flipped_byte_is_found_and_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run"
    with stepwell.open(path) as writer:
        writer.save(4, {"bad": MARK, "good": np.arange(100)})
    (segment, offset) = next(
        (file, file.read_bytes().find(MARK.tobytes()))
        for file in sorted((path / "segments").iterdir())
        if MARK.tobytes() in file.read_bytes()
    )
    with segment.open("r+b") as file:
        file.seek(offset + 5000)
        byte = file.read(1)[0]
        file.seek(offset + 5000)
        file.write(bytes([byte ^ 1]))

    result = run("verify", path)
    assert result.returncode == 4
    where = rf"\(.*{segment.name} at \d+\)"
    assert re.search(rf"damaged step 4 item state leaf bad {where}", result.stdout)
    (problem,) = document("verify", path, status=4)["problems"]
    assert (problem["step"], problem["path"]) == (4, "bad")
    assert problem["file"].endswith(segment.name)

    message = error("cat", path, 4, "bad", "--full", status=4)
    assert segment.name in message
    assert document("cat", path, 4, "bad", "--full", status=4)["error"]["code"] == "corruption"
    assert ok("cat", path, 4, "good").startswith("[ 0  1  2")


# ---- errors -------------------------------------------------------------------------------------


def test_a_step_that_is_not_there_names_the_nearest(store: pathlib.Path) -> None:
    message = error("show", store, 7, status=3)
    assert "7" in message and "2" in message and "10" in message
    failed = document("cat", store, 7, "epoch", status=3)["error"]
    assert failed["code"] == "not_found"
    assert "10" in failed["message"]
    assert "stepwell ls" in failed["hint"]
    assert run("verify", store, "--step", 7).returncode == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("parms", "step 10 has nothing at \"parms\"; nearest: params"),
        ("params/q", "nearest: params/b, params/w"),
        ("params/layers/2/k", "nearest: params/layers/0, params/layers/1"),
        ("epoch/x", "has nothing below it"),
    ],
)
def test_a_path_that_is_not_there_names_the_nearest(
    store: pathlib.Path, path: str, message: str
) -> None:
    assert re.search(message, error("cat", store, 10, path, status=3))
    assert re.search(message, document("show", store, 10, path, status=3)["error"]["message"])


def test_cat_of_a_node_says_what_to_do(store: pathlib.Path) -> None:
    assert "`stepwell show` prints its tree" in error("cat", store, 10, "params", status=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("ls",),
        ("cat", "STORE", "10"),
        ("show", "STORE", "params"),
        ("show", "STORE", "-1"),
        ("show", "STORE", "9223372036854775808"),
        ("cat", "STORE", "10", "a\\"),
        ("ls", "STORE", "--no-such-option"),
    ],
)
def test_wrong_usage_is_exit_2(store: pathlib.Path, arguments: tuple[str, ...]) -> None:
    given = [str(store) if argument == "STORE" else argument for argument in arguments]
    named = "" if given[0] == "frobnicate" else f" {given[0]}"
    assert f"hint: `stepwell{named} --help`" in error(*given, status=2)
    assert document(*given, status=2)["error"]["code"] == "usage"


def test_help_is_what_one_asks_for_first() -> None:
    top = run("--help")
    assert top.returncode == 0
    for arguments in [(), ("help",)]:
        assert (run(*arguments).returncode, run(*arguments).stdout) == (0, top.stdout)
    assert "TEXT" not in top.stdout
    of_ls = run("ls", "--help").stdout
    assert run("help", "ls").stdout == of_ls
    assert "Exit status" not in of_ls  # said once, of all commands
    for line in re.findall(r"^  ([a-z]+)  ", top.stdout.split("Subcommands:")[1], re.M):
        text = run(line, "--help").stdout
        assert f"Example:\n  stepwell {line} " in text, line
        assert "REQUIRED" not in text, line
    assert 'no command "lss"; did you mean ls?' in error("lss", status=2)
    assert 'no command "reclame"; did you mean reclaim?' in error("reclame", status=2)
    assert 'no command "frobnicate"; there are ls, show' in error("frobnicate", status=2)


def test_what_is_not_a_store(tmp_path: pathlib.Path) -> None:
    assert "nowhere" in error("ls", tmp_path / "nowhere", status=3)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/notes.txt").write_text("hello")
    result = run("ls", tmp_path / "plain")
    assert result.returncode in (1, 3)
    assert "not a Stepwell store" in result.stderr
    assert [p.name for p in (tmp_path / "plain").iterdir()] == ["notes.txt"]


def test_reading_leaves_the_store_as_it_was(store: pathlib.Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}

    before = content()
    for command in (("ls",), ("show",), ("verify",)):
        ok(command[0], store)
    ok("cat", store, 10, "params/w")
    assert content() == before


def test_a_reader_that_goes_away_is_no_error(store: pathlib.Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [str(PROGRAM), "cat", str(store), "10", "long"]
        result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_full_disk_has_a_hint(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    result = run("export", store, 10, tmp_path / "x.npz", "--to", "npz", "--path", "params/w",
                 preexec_fn=no_room, restore_signals=False)
    assert result.returncode == 6, result
    assert "hint: nothing that was saved is lost; `stepwell rm` and `stepwell" in result.stderr


def test_a_full_disk_below_stdout_is_exit_6(store: pathlib.Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [str(PROGRAM), "ls", str(store)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 6
    assert b"No space left on device" in result.stderr


def test_help_and_version(store: pathlib.Path) -> None:
    text = ok("--help")
    for word in ("ls", "show", "cat", "verify", "doctor", "Exit status", "an example"):
        assert word in text
    assert re.fullmatch(r"stepwell \d+\.\d+\.\d+\n", ok("--version"))
    assert "--full" in ok("cat", "--help")


def test_no_colour_and_no_progress_off_a_terminal(store: pathlib.Path) -> None:
    for command in ("ls", "show", "verify"):
        assert "\x1b" not in ok(command, store)
