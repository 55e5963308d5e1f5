# SPDX-License-Identifier: Apache-2.0
"""`stepwell patch`."""

import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors
import stepwell
from program import document, error, ok


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run") as writer:
        w = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
        for step in (1, 2):
            w[3, 4] = step
            writer.save(step, items={"params": {"w": w.copy(), "b": np.zeros(3)},
                                     "opt": {"name": "adam"}})
    return tmp_path / "run"


def test_patch(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "patch"
    text = ok("patch", store, 1, "latest", file, "--item", "params", "--dtype=bfloat16",
              "--rename", "w=model.weight", "--rename", "b=model.bias")
    assert text.startswith(f"wrote {file}, ")
    assert "from step 1 to 2: 1 tensor with 1 element, 0 whole, 1 unchanged, 0 removed" in text
    with safetensors.safe_open(file, framework="np") as opened:
        assert opened.get_tensor("model.weight.indices").tolist() == [124]
        values = opened.get_tensor("model.weight.values")
        assert values.dtype == ml_dtypes.bfloat16 and values.tolist() == [2]
        about = opened.metadata()
    assert json.loads(about["tensors"]) == {"model.weight": {"dtype": "BF16", "shape": [30, 40]}}
    report = document("patch", store, 2, 1, file, "--item=params", "--replace", "--no-digests")
    assert (report["since"], report["to"], report["sparse"]) == (2, 1, 1)
    assert report["base_digest"] == "" and report["size_bytes"] == file.stat().st_size


def test_patch_says_what_is_wrong(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "patch"
    assert "is a str" in error("patch", store, 1, 2, file, status=2)
    assert "left out opt/name: is a str" in ok("patch", store, 1, 2, file, "--on-unsupported=skip")
    assert "patch" in error("patch", store, 1, 2, file, "--on-unsupported=skip", status=1)
    assert "FROM=TO" in error("patch", store, 1, 2, file, "--rename=x", status=2)
    assert "there are: b, w" in error("patch", store, 1, 2, file, "--item=params",
                                      "--rename=v=x", "--replace", status=3)
    assert "step 7" in error("patch", store, 1, 7, file, status=3)
    assert "STEP" in error("patch", store, "x", 2, file, status=2)
