# SPDX-License-Identifier: Apache-2.0
"""Published encoders of what changed between two steps, on the arrays of the theme publish, with
PyTorch on CPUs: encoders.py CHECKOUTS DIRECTORY SIZE_BYTES SEED. Each is given which elements
changed, which one comparison finds here and hooks of the optimizer in their trainers; it writes a
file of the changes, without a flush to the disk, and applies it to a copy of the step before.
Prints seconds, as JSON.

CHECKOUTS has `trl` and `prime-rl`, at the commits that README.md names."""

import importlib.util
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import states
import torch
from safetensors.torch import load_file, save_file

RUNS = 3

Tensors = dict[str, torch.Tensor]
# Writes the changes of a step to a directory and applies them to the step before: the step, its
# masks, the step before, the directory.
Publish = Callable[[Tensors, Tensors, Tensors, pathlib.Path], None]


def _module(file: pathlib.Path) -> Any:
    """The module alone: their packages import servers and trainers."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def trl(checkouts: pathlib.Path) -> Publish:
    """What delta_engine.encode_patch, save_file and receive_sparse_weights do; that module needs
    vLLM."""
    codec = _module(checkouts / "trl/trl/experimental/async_grpo/delta_codec.py")

    def publish(after: Tensors, changed: Tensors, held: Tensors, folder: pathlib.Path) -> None:
        patch = {}
        for name, places, values in codec.extract_sparse_batched(
                [(name, after[name], mask) for name, mask in changed.items()]):
            patch[f"{name}.val"] = values
            patch[f"{name}.idx"] = codec.gap_delta_encode(places)
        save_file(patch, folder / "patch.safetensors")
        patch = load_file(folder / "patch.safetensors")
        for name, tensor in held.items():
            places = codec.gap_delta_decode(patch[f"{name}.idx"])
            tensor.view(-1).index_copy_(0, places.long(), patch[f"{name}.val"])

    return publish


def prime_rl(checkouts: pathlib.Path) -> Publish:
    update = _module(checkouts / "prime-rl/src/prime_rl/utils/sparse_update.py")

    def publish(after: Tensors, changed: Tensors, held: Tensors, folder: pathlib.Path) -> None:
        update.save_sparse_update_from_diff(after, changed, folder, step=1, base_step=0)
        update.apply_sparse_update(held, folder, expected_base_step=0)

    return publish


def _tensors(weights: dict[str, np.ndarray]) -> Tensors:
    return {name: torch.from_numpy(leaf.view(np.int16).copy()).view(torch.bfloat16)
            for name, leaf in weights.items()}


def main() -> None:
    checkouts, directory = map(pathlib.Path, sys.argv[1:3])
    size_bytes, seed = map(int, sys.argv[3:5])
    weights = states.make_weights(size_bytes, seed)
    before = _tensors(weights)
    states.nudge(weights, np.random.default_rng(seed))
    after = _tensors(weights)
    del weights
    found = {}
    for name, publish in (("trl", trl(checkouts)), ("prime-rl", prime_rl(checkouts))):
        seconds = []
        for _ in range(RUNS):
            held = {key: tensor.clone() for key, tensor in before.items()}
            with tempfile.TemporaryDirectory(dir=directory) as folder:
                start = time.perf_counter()
                changed = {key: after[key] != before[key] for key in after}
                publish(after, changed, held, pathlib.Path(folder))
                seconds.append(time.perf_counter() - start)
            if not all(torch.equal(held[key].view(torch.int16), after[key].view(torch.int16))
                       for key in after):
                raise states.WrongBytes(f"{name} made other weights")
        found[name] = statistics.median(seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
