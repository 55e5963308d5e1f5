# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.torch with the real torch; `bench/torch_test` runs it."""

import io
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stepwell
import torch
import torch.distributed.checkpoint as dcp
from stepwell.compat.torch import _DTYPES, StepwellReader, StepwellWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is .*:UserWarning")
RANKS = pathlib.Path(__file__).with_name("ranks.py")


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


def save(path: Any, step: int, state: Any, **options: Any) -> None:
    dcp.save(state, storage_writer=StepwellWriter(path, step, **options))


def load(path: Any, state: Any, step: int | None = None, **options: Any) -> Any:
    dcp.load(state, storage_reader=StepwellReader(path, step), **options)
    return state


def cause(error: pytest.ExceptionInfo[dcp.CheckpointException]) -> BaseException:
    (wrapped,) = error.value.failures.values()
    return wrapped[0]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * (seed + 1), amsgrad=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
    return model, optimizer


# ---- what is saved -----------------------------------------------------------------------------


def test_a_model_and_adam_resume_bit_for_bit(path: pathlib.Path) -> None:
    model, optimizer = trained(0)
    save(path, 7, {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 3})
    other, other_optimizer = trained(1)
    state = load(path, {"model": other.state_dict(), "optim": other_optimizer.state_dict(),
                        "epoch": 0})
    other.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optim"])
    assert state["epoch"] == 3
    batch = torch.randn(4, 5)
    for each, its in ((model, optimizer), (other, other_optimizer)):
        its.zero_grad()
        each(batch).square().sum().backward()
        its.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert bits(ours) == bits(theirs)


def test_the_step_is_an_ordinary_one(path: pathlib.Path) -> None:
    model, optimizer = trained(0)
    save(path, 7, {"model": model.state_dict(), "optim": optimizer.state_dict(), "name": "run"},
         metadata={"git": "abc"}, metrics={"loss": 0.5})
    with stepwell.open(path, mode="r") as store:
        loaded = store.load(7)
        assert set(loaded) == {"model", "optim", "name"} and loaded["name"] == "run"
        weight = model.state_dict()["0.weight"].numpy()
        np.testing.assert_array_equal(loaded["model"]["0.weight"], weight)
        np.testing.assert_array_equal(store[7]["model/0.weight"][1:3], weight[1:3])
        group = loaded["optim"]["param_groups"][0]
        assert group["lr"] == 1e-3 and group["amsgrad"] is True
        assert type(group["betas"]) is bytes
        assert store[7].metadata == {"git": "abc"} and store[7].metrics == {"loss": 0.5}
        assert store.verify().problems == []
    program = pathlib.Path(os.environ["STEPWELL_BUILD_DIR"]) / "api/cli/stepwell"
    for command, expected in ((["ls", path], "7 "), (["show", path, "7"], "0.weight"),
                              (["cat", path, "7", "name"], "run")):
        done = subprocess.run([program, *command], text=True, capture_output=True, check=True)
        assert expected in done.stdout


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, path: pathlib.Path) -> None:
    raw = torch.arange(240, dtype=torch.uint8)
    tensor = (raw % 2 == 0) if dtype == torch.bool else raw.view(dtype)
    saved = {"w": tensor.reshape(3, -1), "strided": tensor.reshape(3, -1).t(), "none": tensor[:0],
             "scalar": tensor[7 % len(tensor)]}
    save(path, 0, saved)
    loaded = load(path, {key: torch.zeros(each.shape, dtype=dtype) for key, each in saved.items()})
    for key, each in saved.items():
        assert loaded[key].dtype == dtype and bits(loaded[key]) == bits(each), key
    with stepwell.open(path, mode="r") as store:
        assert store[0]["w"].dtype == _DTYPES[dtype]
        assert np.asarray(store[0]["w"]).tobytes() == bits(tensor)


def test_bfloat16_and_float8_are_ml_dtypes_in_the_store(path: pathlib.Path) -> None:
    save(path, 0, {"a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
                   "b": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)})
    with stepwell.open(path, mode="r") as store:
        loaded = store.load(0)
    assert loaded["a"].dtype == ml_dtypes.bfloat16 and loaded["a"].tolist() == [1.5, -2.0]
    assert loaded["b"].dtype == ml_dtypes.float8_e4m3fn and loaded["b"].tolist() == [0.5, 448.0]


def test_values_and_objects(path: pathlib.Path) -> None:
    state = {"bool": True, "int": 2**70, "float": float("-inf"), "str": "ä", "none": None,
             "bytes": b"\x00raw", "tuple": (1, "x"), "list": [1, 2], "set": {3},
             "nested": {"deep": [{"x": 1}, {"t": torch.ones(2)}]}}
    save(path, 0, state)
    empty: Any = {key: None for key in state} | {"nested": {"deep": [{"x": 0},
                                                                     {"t": torch.zeros(2)}]}}
    loaded = load(path, empty)
    assert loaded["nested"]["deep"][1]["t"].tolist() == [1, 1]
    assert loaded["nested"]["deep"][0] == {"x": 1}
    assert {k: v for k, v in loaded.items() if k != "nested"} == {
        k: v for k, v in state.items() if k != "nested"}
    with stepwell.open(path, mode="r") as store:
        plain = store.load(0)
    assert [plain[key] for key in ("bool", "int", "float", "str", "none")] == [
        state[key] for key in ("bool", "int", "float", "str", "none")]
    assert type(plain["tuple"]) is type(plain["bytes"]) is bytes


def test_a_planner_of_its_own_bytes_gets_them_back(path: pathlib.Path) -> None:
    """Values come back as the bytes that were given, also if another program would load them."""
    class Pickles(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            if write_item.index.fqn != "value":
                return super().transform_object(write_item, object)
            return io.BytesIO(pickle.dumps(object, protocol=2))

    class Unpickles(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            self.original_state_dict["value"] = pickle.loads(value.read())

    dcp.save({"value": 41}, storage_writer=StepwellWriter(path, 0), planner=Pickles())
    assert load(path, {"value": 0}, planner=Unpickles()) == {"value": 41}


def test_without_flattening(path: pathlib.Path) -> None:
    dcp.save({"w": torch.ones(3), "sub": {"x": 1}}, storage_writer=StepwellWriter(path, 0),
             planner=DefaultSavePlanner(flatten_state_dict=False))
    loaded = load(path, {"w": torch.zeros(3), "sub": None},
                  planner=DefaultLoadPlanner(
        flatten_state_dict=False, flatten_sharded_tensors=False))
    assert loaded["sub"] == {"x": 1} and loaded["w"].tolist() == [1, 1, 1]


def test_a_state_dict_is_made_without_one_to_load_into(path: pathlib.Path) -> None:
    save(path, 1, {"model": {"layers.0.w": torch.arange(4.0)},
                   "groups": [{"lr": 0.1, "t": torch.ones(1)}]})
    whole = _load_state_dict_from_keys(storage_reader=StepwellReader(path))
    assert whole["model"]["layers.0.w"].tolist() == [0, 1, 2, 3]
    assert whole["groups"][0]["lr"] == 0.1


# ---- what is loaded ----------------------------------------------------------------------------


def test_a_subset_reads_only_its_chunks(path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        save(store, 0, {"large": torch.ones(4 << 20), "small": {"a": torch.ones(3), "b": 5}})
        state = load(store, {"small": {"a": torch.zeros(3)}})
        assert state["small"]["a"].tolist() == [1, 1, 1]
        assert store.stats()["last_load"]["bytes_read"] < 1 << 16


def test_a_step_of_another_program(path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        store.save(3, {"params": {"w": np.arange(6.0).reshape(2, 3), "layers": [np.int32([4])]},
                       "n": 9}, items={"ema": {"w": np.float32([2])}}).result()
        state = load(store, {"state": {"params": {"w": torch.zeros(2, 3, dtype=torch.float64),
                                                  "layers": [torch.zeros(1)]}, "n": 0},
                             "ema": {"w": torch.zeros(1)}})
    assert state["state"]["params"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert state["state"]["params"]["layers"][0].tolist() == [4] and state["state"]["n"] == 9
    assert state["ema"]["w"].tolist() == [2]


def test_dtypes_are_converted_as_copy_does(path: pathlib.Path) -> None:
    save(path, 0, {"w": torch.tensor([1.0, 2.5])})
    assert load(path, {"w": torch.zeros(2, dtype=torch.bfloat16)})["w"].tolist() == [1.0, 2.5]


def test_the_step_stays_while_it_is_read(path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1, {"w": torch.ones(2)})
        reader = StepwellReader(store, 1)
        save(store, 1, {"w": torch.zeros(2)}, if_exists="replace")
        state = {"w": torch.full((2,), 5.0)}
        for expected, each in (([1, 1], reader), ([0, 0], StepwellReader(store))):
            dcp.load(state, storage_reader=each)
            assert state["w"].tolist() == expected


# ---- saves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "store"])
def test_async_save_takes_the_values_at_the_call(kind: str, path: pathlib.Path) -> None:
    with stepwell.open(path, keep=stepwell.policy.LatestN(2)) as store:
        target = store if kind == "store" else path.with_name("other")
        state = {"w": torch.zeros(1000), "n": 0}
        futures = []
        for step in range(4):
            future = dcp.async_save(state, storage_writer=StepwellWriter(target, step))
            if kind == "path":
                future.result()
            futures.append(future)
            state["w"] += 1
        for future in futures:
            future.result()
        reader = StepwellReader(target, 3)
        assert StepwellReader(target)._source.step == 3
        loaded = {"w": torch.zeros(1000)}
        dcp.load(loaded, storage_reader=reader)
        assert loaded["w"].tolist() == [3] * 1000
        assert kind == "path" or store.steps() == [2, 3]


def test_a_save_that_fails_leaves_no_step(path: pathlib.Path) -> None:
    class Fails(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if write_item.index.fqn == "b":
                raise RuntimeError("no b today")
            return super().resolve_data(write_item)

    save(path, 0, {"a": torch.ones(2)})
    writer = StepwellWriter(path, 1)
    with pytest.raises(dcp.CheckpointException, match="no b today"):
        dcp.save({"a": torch.ones(2), "b": torch.ones(2)}, storage_writer=writer, planner=Fails())
    with stepwell.open(path) as store:  # and the lock is free
        assert store.steps() == [0]
    dcp.save({"a": torch.ones(2)}, storage_writer=writer)  # the same writer may try again
    assert StepwellReader(path)._source.step == 1


def test_a_save_that_is_killed_leaves_no_step_or_all_of_it(path: pathlib.Path) -> None:
    save(path, 0, {"w": torch.zeros(8)})
    program = ("import sys, torch, torch.distributed.checkpoint as dcp\n"
               "from stepwell.compat.torch import StepwellWriter\n"
               "for step in range(1, 10**6):\n"
               "    dcp.save({'w': torch.full((1 << 18,), float(step)), 'n': step},\n"
               "             storage_writer=StepwellWriter(sys.argv[1], step))\n"
               "    print(step, flush=True)\n")
    for _ in range(2):
        with stepwell.open(path) as store:
            store.delete([step for step in store if step])
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program, path],
                                   stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        acknowledged = [1, *map(int, process.communicate()[0].split())]
        with stepwell.open(path) as store:
            steps = store.steps()
            assert set(acknowledged) <= set(steps) and len(steps) <= len(acknowledged) + 2
            assert store.verify().problems == []
        for step in steps[1:]:
            state = load(path, {"w": torch.zeros(1 << 18), "n": 0}, step)
            assert state["n"] == step and bool((state["w"] == step).all())


# ---- errors ------------------------------------------------------------------------------------


def test_a_step_that_exists(path: pathlib.Path) -> None:
    save(path, 7, {"w": torch.ones(2)})
    with pytest.raises(stepwell.errors.StepExistsError, match="has step 7 already"):
        StepwellWriter(path, 7)
    save(path, 7, {"w": torch.zeros(2)}, if_exists="skip")
    assert load(path, {"w": torch.zeros(2)})["w"].tolist() == [1, 1]
    save(path, 7, {"w": torch.zeros(2)}, if_exists="replace")
    assert load(path, {"w": torch.ones(2)})["w"].tolist() == [0, 0]
    first, second = StepwellWriter(path, 8), StepwellWriter(path, 8)
    dcp.save({"w": torch.ones(2)}, storage_writer=first)
    with pytest.raises(dcp.CheckpointException) as error:
        dcp.save({"w": torch.ones(2)}, storage_writer=second)
    assert isinstance(cause(error), stepwell.errors.StepExistsError)


def test_a_step_or_a_store_that_is_missing(path: pathlib.Path) -> None:
    with pytest.raises(stepwell.errors.StoreNotFoundError):
        StepwellReader(path, 0)
    save(path, 1, {"w": torch.ones(2)})
    with pytest.raises(stepwell.errors.StepNotFoundError, match="step 9"):
        StepwellReader(path, 9)


@pytest.mark.parametrize(("state", "message"), [
    ({"w": torch.zeros(2), "model": {"v": torch.zeros(1)}}, r"Missing key .*model\.v"),
    ({"w": torch.zeros(3)}, r"Size mismatch .*\[2\].*\[3\].* for w"),
    ({"w": 5}, "Invalid checkpoint metadata for w")])
def test_what_does_not_fit_is_named_and_nothing_loaded(
        state: Any, message: str, path: pathlib.Path) -> None:
    save(path, 1, {"w": torch.ones(2)})
    before = pickle.dumps(state)
    with pytest.raises(dcp.CheckpointException, match=message):
        load(path, state)
    assert pickle.dumps(state) == before


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_what_cannot_be_saved(path: pathlib.Path) -> None:
    for tensor in (torch.zeros(2, dtype=torch.complex32), torch.eye(2).to_sparse()):
        with pytest.raises(dcp.CheckpointException) as error:
            save(path, 0, {"model": {"w": tensor}})
        assert isinstance(cause(error), stepwell.errors.UnsupportedLeafError)
        assert "model.w" in str(cause(error))
    with pytest.raises(stepwell.errors.StoreNotFoundError):
        StepwellReader(path)


def test_arguments(path: pathlib.Path) -> None:
    invalid = stepwell.errors.InvalidArgumentError
    with pytest.raises(invalid):
        StepwellWriter(path, -1)
    with pytest.raises(invalid, match="checkpoint_id"):
        dcp.save({}, checkpoint_id="x", storage_writer=StepwellWriter(path, 0))
    with stepwell.open(path) as store:
        save(store, 0, {"w": torch.ones(1)})
        with pytest.raises(invalid, match="checkpoint_id"):
            dcp.load({}, checkpoint_id="x", storage_reader=StepwellReader(store, 0))
        store.save(1, {"a": {"b": 1}, "a.b": 2}).result()
        with pytest.raises(invalid, match=r"'a\.b'"):
            StepwellReader(store, 1)
        with pytest.raises(dcp.CheckpointException) as error:  # another process may have the lock
            save(path, 2, {"w": torch.ones(1)})
        assert isinstance(cause(error), stepwell.errors.LockedError)
    with stepwell.open(path, mode="r") as store, pytest.raises(dcp.CheckpointException) as error:
        save(store, 2, {"w": torch.ones(1)})
    assert isinstance(cause(error), stepwell.errors.PermissionDeniedError)


# ---- several ranks -----------------------------------------------------------------------------


def run_ranks(job: str, path: pathlib.Path, count: int) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       WORLD_SIZE=str(count), OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", RANKS, job, path], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(environment, RANK=str(rank))) for rank in range(count)]
    results = [rank.communicate(timeout=600) for rank in ranks]
    for rank, (_, errors) in zip(ranks, results, strict=True):
        assert rank.returncode == 0, errors
    return [output.strip() for output, _ in results]


def test_ranks_save_their_shards_and_others_load_them(path: pathlib.Path) -> None:
    """DTensors of 3 ranks, in parts of unequal size; then on 2 ranks, split along the other axis;
    then in this process alone."""
    assert run_ranks("save", path, 3) == ["saved"] * 3
    assert run_ranks("load", path, 2) == ["loaded"] * 2
    state = load(path, {"w": torch.zeros(10, 4), "half": torch.zeros(10, 4).bfloat16(),
                        "all": torch.zeros(3), "own": {"rank0": 0, "rank1": 0, "rank2": 0}})
    assert bits(state["w"]) == bits(torch.arange(40.0).reshape(10, 4))
    assert bits(state["half"]) == bits(torch.arange(40.0).reshape(10, 4).bfloat16())
    assert state["all"].tolist() == [1, 2, 3] and state["own"]["rank2"] == 2


def test_a_rank_that_fails_leaves_no_step(path: pathlib.Path) -> None:
    assert run_ranks("fail", path, 2) == ["refused"] * 2
    with pytest.raises(stepwell.errors.StoreNotFoundError):
        StepwellReader(path)


def test_a_rank_alone_cannot_save_a_shard_as_the_whole(path: pathlib.Path) -> None:
    assert run_ranks("alone", path, 2)[0] == (
        "cannot save w: 20 of its 40 elements are in this save. With no_dist=True a rank saves "
        "what it has alone: save with all ranks")
