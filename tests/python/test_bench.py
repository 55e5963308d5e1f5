# SPDX-License-Identifier: Apache-2.0
"""bench/run at its smallest: every row comes, and what is restored is compared. No times."""

import json
import os
import subprocess
import sys
from pathlib import Path

from storm import in_a_storm

BENCH = Path(__file__).resolve().parents[2] / "bench"


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(BENCH / "run.py"), *map(str, arguments)], capture_output=True,
        text=True, timeout=900, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def test_every_row_is_produced(tmp_path: Path) -> None:
    """With one peer of the many in the check, and with all in tests/soak."""
    file = tmp_path / "out.json"
    peers = ["orbax-v1", "orbax-v0", "stepwell-v1", "safetensors", "equinox"][:in_a_storm(1)]
    result = run("--quick", "--dir", tmp_path, "--json", file, "--contenders",
                 ",".join(["stepwell", *peers]))
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(file.read_text())
    assert document["failures"] == []
    figures = {(out["row"], out["contender"]): out for out in document["figures"]}
    assert list(document["contenders"]) == ["stepwell", *peers]
    for row in document["rows"]:
        if not row["background"]:
            assert figures[row["id"], "stepwell"]["values"], row["id"]
        for peer in peers:
            done_is_durable = peer in ("stepwell-v1", "safetensors", "equinox")
            if not row["only"] and not (row["background"] and done_is_durable):
                figure = figures[row["id"], peer]
                assert figure["values"] or figure["problem"].startswith("cannot: "), (row, peer)
    assert list(tmp_path.iterdir()) == [file]

    chart = tmp_path / "chart.svg"
    again = run("--from", file, "--svg", chart)
    assert again.returncode == 0, again.stderr
    assert again.stdout == result.stdout
    shown = chart.read_text(encoding="utf-8")
    assert all(f">{described['name']}</text>" in shown
               for described in document["contenders"].values())
    assert "| throughput of a save until durable, NumPy arrays ÷ fio write |" in again.stdout


def test_the_chart_of_the_readme_is_of_the_recorded_run(tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    result = run("--from", BENCH / "recorded.json", "--svg", chart)
    assert result.returncode == 0, result.stderr
    drawn = BENCH.parent / "api/docs/pages/chart.svg"
    assert chart.read_bytes() == drawn.read_bytes()


def test_a_fine_tuning_that_keeps_each_step(tmp_path: Path) -> None:
    """As README.md shows it, and at its smallest, with the comparison of what is loaded."""
    program, recorded = BENCH / "fine_tuning.py", BENCH / "recorded_fine_tuning.json"
    chart = tmp_path / "chart.svg"
    for source, *arguments in ([recorded, "--from", recorded],
                               [tmp_path / "out.json", "--steps", 7, "--width", 64, "--json",
                                tmp_path / "out.json", "--dir", tmp_path]):
        subprocess.run([sys.executable, str(program), *map(str, arguments), "--svg", str(chart)],
                       check=True, capture_output=True, timeout=600,
                       env={**os.environ, "JAX_PLATFORMS": "cpu"})
        found = json.loads(source.read_text())
        assert found["stepwell"][-1][0] == found["steps"]
        if source == recorded:
            drawn = BENCH.parent / "api/docs/pages/fine-tuning.svg"
            assert chart.read_bytes() == drawn.read_bytes()
            assert found["stepwell"][-1][1] < 3 * found["state_bytes"]


def test_a_contender_that_fails_is_told(tmp_path: Path) -> None:
    """An interpreter without PyTorch stands for an environment that is broken."""
    result = run("--quick", "--rows", "start", "--contenders", "stepwell,torch-save", "--torch",
                 sys.executable, "--dir", tmp_path)
    assert result.returncode == 1
    assert "torch-save cannot be imported: No module named 'torch'" in result.stderr


def test_wrong_bytes_are_a_failure(tmp_path: Path) -> None:
    """The comparison itself: one flipped bit, another dtype, a leaf too many."""
    code = """
import numpy, states
state = states.make_state(200_000)
other = states.tree_map(numpy.copy, state)
states.expect_equal(other, state)
def refused(got):
    try:
        states.expect_equal(got, state)
    except states.WrongBytes as error:
        return str(error)
flipped = states.tree_map(numpy.copy, state)
flipped["params"]["layer_3"]["bias"].view(numpy.uint8)[5] ^= 1
wide = {**state, "params": {**state["params"], "layer_0": {
    "kernel": state["params"]["layer_0"]["kernel"].astype("f8"),
    "bias": state["params"]["layer_0"]["bias"]}}}
print(refused(flipped), refused(wide), refused({**state, "more": numpy.zeros(1)}), sep="\\n")
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, text=True,
                         check=True, env={**os.environ, "PYTHONPATH": str(BENCH)}).stdout
    assert out.splitlines() == [
        "gave params/layer_3/bias back with other bytes than it was given",
        "gave params/layer_0/kernel back with another dtype or shape",
        "gave another tree back than it was given"]


def test_durability_sees_what_is_lost_and_what_is_wrong(tmp_path: Path) -> None:
    """A power cut and flipped bits, for a store that survives and for a format that does not."""
    file = tmp_path / "out.json"
    result = subprocess.run(
        [sys.executable, str(BENCH / "durability.py"), "--cuts", "1", "--flips", "4",
         "--file-systems", "ext4", "--only", "stepwell,flax", "--dir", str(tmp_path),
         "--json", str(file)], capture_output=True, text=True, timeout=600,
        env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(file.read_text())
    assert found["stepwell"] == {"ext4": {"right": 3}, "flips": {"refused": 4}}
    assert found["flax"] == {"ext4": {"refused": 3}, "flips": {"WRONG": 4}}
    assert "| Stepwell | 3 there, 0 lost | 4 refused, 0 harmless, 0 wrong |" in result.stdout
    assert list(tmp_path.iterdir()) == [file]
