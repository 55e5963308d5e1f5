# SPDX-License-Identifier: Apache-2.0
"""`stepwell cat` with slices and .npy files, and `stepwell diff`, against NumPy."""

import io
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stepwell
from program import PROGRAM, cat_here, document, error, ok, parsed_document, run

# Several chunks, which do not compress.
CUBE = np.random.default_rng(6).standard_normal((7, 600, 500), np.float32)
LINE = np.arange(3_000_000, dtype=np.int16)
ARRAYS: dict[str, Any] = {
    "cube": CUBE,
    "line": LINE,
    "small": np.arange(24).reshape(2, 3, 4),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 4)),
    "text": "hello",
    "half": np.arange(40, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(8, 5),
    "int4": np.arange(-8, 8).astype(ml_dtypes.int4),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    path = tmp_path_factory.mktemp("arrays") / "run"
    with stepwell.open(path) as writer:
        writer.save(0, ARRAYS)
    yield path


def npy(*arguments: object) -> np.ndarray[Any, Any]:
    """Reads by NumPy the output of `--npy`."""
    command = [str(PROGRAM), "cat", *map(str, arguments), "--npy"]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    return read_npy(result.stdout)


def read_npy(written: bytes) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(written)
    array = np.load(stream, allow_pickle=False)
    assert stream.read() == b""
    return np.asarray(array)


def basic(text: str) -> Any:
    """The index that Python makes of `text`."""

    class Index:
        def __getitem__(self, index: Any) -> Any:
            return index

    return eval(f"index[{text}]", {"index": Index()})


# ---- slices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("small", "0:1,:,3"),
        ("small", "..."),
        ("small", "1"),
        ("small", "-1,-2,-3"),
        ("small", "..., 2"),
        ("small", "0, ..., 1:3"),
        ("small", "::-1,::-2,::3"),
        ("small", "5:, :, :"),
        ("small", ":-1, 1:100, -100:2"),
        ("small", "1,"),
        ("small", "2:0:-1, 2:-9:-1, +1"),
        ("small", "::-9223372036854775808"),
        ("cube", "0:2, 100:105, ::50"),
        ("cube", "::3, ::-299, 7"),
        ("cube", "-1, 5:600:7, 499:0:-3"),
        ("cube", "6:2:-2, 300, :"),
        ("cube", ":, -1, -1"),
        ("line", "::-1"),
        ("line", "10:2_999_990:3".replace("_", "")),
        ("line", "2999999:5:-700000"),
        ("line", "1500000:1500001"),
        ("scalar", "..."),
        ("empty", "..."),
        ("empty", ":, 1"),
    ],
)
def test_a_slice_is_numpys(store: pathlib.Path, path: str, text: str) -> None:
    expected = np.asarray(ARRAYS[path])[basic(text)]
    found = npy(store, 0, path, "--slice", text)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)
    if expected.size <= 20_000:
        printed = parsed_document(
            cat_here(store, 0, path, f"--slice=[{text}]", "--full", "--json"))
        assert printed["shape"] == list(expected.shape)
        values = np.array(printed["value"], expected.dtype)
        assert np.array_equal(values.reshape(expected.shape), expected)


def test_random_slices_are_numpys(store: pathlib.Path) -> None:
    random = np.random.default_rng(5)

    def bound(extent: int) -> str:
        kind = random.integers(4)
        return "" if kind == 0 else str(random.integers(-extent - 3, extent + 3))

    for _ in range(40):
        parts = []
        for extent in CUBE.shape[: random.integers(1, 4)]:
            if random.integers(4) == 0:
                parts.append(str(random.integers(-extent, extent)))
            else:
                step = random.choice(["", ":1", ":2", ":-1", ":-3", ":260", ":-257"])
                parts.append(f"{bound(extent)}:{bound(extent)}{step}")
        text = ",".join(parts)
        found = read_npy(cat_here(store, 0, "cube", f"--slice={text}", "--npy"))
        assert np.array_equal(found, CUBE[basic(text)]), text


def test_a_large_slice_prints_its_corners(store: pathlib.Path) -> None:
    text = ok("cat", store, 0, "line", "--slice", "::-2")
    assert text == "[2999999 2999997 2999995 ...       5       3       1]\n".replace(
        "2999999 2999997 2999995", " ".join(f"{int(value):>6}" for value in LINE[::-2][:3])
    ).replace("      5       3       1", "     5      3      1")
    summary = document("cat", store, 0, "cube", "--slice", "1:7,:,::2")
    assert (summary["whole"], summary["shape"]) == (False, [6, 600, 250])


def bytes_read(*arguments: object) -> int:
    """Bytes that the program asked of segment files."""
    with tempfile.TemporaryDirectory() as folder:  # a file a thread: their lines do not mix
        command = ["strace", "-ff", "-qq", "-o", f"{folder}/trace", "-e",
                   "trace=pread64,preadv,preadv2", str(PROGRAM)]
        result = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "STEPWELL_DISK": "posix"},
        )
        assert result.returncode == 0, result.stderr
        lines = [line for trace in pathlib.Path(folder).iterdir()
                 for line in trace.read_text(errors="replace").split("\n")]
    return sum(int(line.rsplit(" = ", 1)[1].split()[0]) for line in lines
               if line.startswith("pread"))


def test_a_slice_reads_just_its_chunks(store: pathlib.Path) -> None:
    chunk = CUBE.nbytes / document("show", store, 0, "cube")["entries"][0]["chunks"]
    whole = bytes_read("cat", store, 0, "cube", "--npy", "-o", "/dev/null")
    one = bytes_read("cat", store, 0, "cube", "--slice", "3,5,7")
    assert CUBE.nbytes <= whole < 1.2 * CUBE.nbytes
    assert 0 < one < 3 * chunk < CUBE.nbytes / 2


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("small", "2", "index 2 is out of bounds for axis 0 with 2 elements"),
        ("small", "-3", "index -3 is out of bounds for axis 0 with 2 elements"),
        ("small", ":,:,:,0", "--slice names 4 axes; the array has 3"),
        ("small", "x", '"x" is not an index, START:STOP:STEP or ...'),
        ("small", "0:y", '"0:y" is not an index'),
        ("small", "::0", "axis 0 has step 0"),
        ("small", "1:2:3:4", "more than two colons"),
        ("small", "...,...", 'more than one "..."'),
        ("small", "", "--slice is empty"),
        ("small", "0,,1", '"" is not an index'),
        ("small", "99999999999999999999", "is out of bounds for axis 0"),
        ("scalar", "0", "--slice names 1 axis; the array has 0"),
        ("text", "0:2", "text is a value, not an array"),
    ],
)
def test_a_bad_slice_says_why(store: pathlib.Path, path: str, text: str, message: str) -> None:
    assert message in error("cat", store, 0, path, "--slice", text, status=2)
    assert document("cat", store, 0, path, "--slice", text, status=2)["error"]["code"] == "usage"


# ---- .npy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", "?bBhHiIlLefdFD")
def test_npy_of_every_numpy_dtype(tmp_path: pathlib.Path, letter: str) -> None:
    dtype = np.dtype(letter)
    random = np.random.default_rng(2)
    array = random.integers(0, 2, 60).astype(dtype).reshape(3, 4, 5)
    if dtype != bool:
        bits = random.integers(0, 256, 60 * dtype.itemsize, dtype=np.uint8)
        array = bits.view(dtype).reshape(3, 4, 5)
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(0, {"x": array})
    found = npy(tmp_path / "run", 0, "x")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_npy_into_a_file(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "cube.npy"
    text = ok("cat", store, 0, "cube", "--npy", "-o", file)
    assert text == f"wrote {file}: <f4[7, 600, 500], 8.0 MiB\n"
    assert np.array_equal(np.load(file), CUBE)
    written = document("cat", store, 0, "line", "--npy", "-o", file, "--slice", "5:9")
    assert (written["file"], written["descr"], written["shape"]) == (str(file), "<i2", [4])
    assert written["bytes"] == file.stat().st_size
    assert np.array_equal(np.load(file), LINE[5:9])
    assert [p.name for p in tmp_path.iterdir()] == ["cube.npy"]


def test_npy_of_what_numpy_lacks(store: pathlib.Path) -> None:
    message = error("cat", store, 0, "half", "--npy", status=1)
    assert "half is bfloat16, which NumPy itself does not have" in message
    assert "--bits" in message and "view(ml_dtypes.bfloat16)" in message
    half = npy(store, 0, "half", "--bits", "--slice", "::2")
    assert half.dtype == np.uint16
    assert np.array_equal(half.view(ml_dtypes.bfloat16), ARRAYS["half"][::2])
    int4 = npy(store, 0, "int4", "--bits")
    assert np.array_equal(int4.view(ml_dtypes.int4), ARRAYS["int4"])


def test_npy_that_cannot_be_written(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    message = error("cat", store, 0, "small", "--npy", "-o", tmp_path / "no/x.npy", status=2)
    assert "no: no such directory" in message
    assert "text is a value" in error("cat", store, 0, "text", "--npy", status=2)
    both = document("cat", store, 0, "small", "--npy", status=2)
    assert "add -o FILE" in both["error"]["message"]
    assert "are for --npy" in error("cat", store, 0, "small", "--bits", status=2)
    assert "No space left" in error("cat", store, 0, "small", "--npy", "-o", "/dev/full", status=6)
    assert pathlib.Path("/dev/full").is_char_device()


def test_npy_to_a_reader_that_goes_away(store: pathlib.Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [str(PROGRAM), "cat", str(store), "0", "cube", "--npy"]
        result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_npy_of_damage_leaves_no_file(tmp_path: pathlib.Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
    with stepwell.open(tmp_path / "run") as writer:
        writer.save(4, {"x": noise})
    for segment in (tmp_path / "run/segments").iterdir():
        content = bytearray(segment.read_bytes())
        at = content.find(noise[:100].tobytes())
        if at >= 0:
            content[at + 500] ^= 1
            segment.write_bytes(content)
    result = run("cat", tmp_path / "run", 4, "x", "--npy", "-o", tmp_path / "x.npy")
    assert (result.returncode, result.stdout) == (4, "")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_glob_prints_each_leaf_that_it_names(store: pathlib.Path) -> None:
    assert ok("cat", store, 0, "?mall", "--slice", "1,2,0:2") == "[20 21]\n"
    assert ok("cat", store, 0, "s*") == "scalar: 2.5\n" "small:\n" + ok("cat", store, 0, "small")
    assert ok("cat", store, 0, "**/te?t") == "hello\n"
    leaves = document("cat", store, 0, "s*")["leaves"]
    assert [leaf["path"] for leaf in leaves] == ["scalar", "small"]
    assert leaves[1]["value"] == ARRAYS["small"].tolist()
    assert "names 2 leaves; --npy writes one" in error("cat", store, 0, "s*", "--npy", status=2)
    assert "nearest: small" in error("cat", store, 0, "smal?l*", status=3)
