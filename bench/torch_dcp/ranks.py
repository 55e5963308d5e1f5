# SPDX-License-Identifier: Apache-2.0
"""One rank of a torch.distributed run over gloo: ranks.py JOB STORE; test_dcp.py starts them."""

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from stepwell.compat.torch import StepwellReader, StepwellWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

job, path = sys.argv[1:]
dist.init_process_group("gloo")
rank, count = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (count,))
whole = torch.arange(40.0).reshape(10, 4)


def sharded(tensor: torch.Tensor, axis: int) -> DTensor:
    return distribute_tensor(tensor, mesh, [Shard(axis)])


def failure(state: dict[str, Any], **options: Any) -> BaseException:
    try:
        dcp.save(state, storage_writer=StepwellWriter(path, 5), **options)
    except dcp.CheckpointException as error:
        return next(iter(error.failures.values()))[0]
    raise AssertionError("it was saved")


if job == "save":
    dcp.save({"w": sharded(whole, 0), "half": sharded(whole.bfloat16(), 0),
              "all": torch.tensor([1.0, 2, 3]), "own": {f"rank{rank}": rank}},
             storage_writer=StepwellWriter(path, 5))
    print("saved")
elif job == "load":
    state = {"w": sharded(torch.zeros(10, 4), 1), "half": sharded(torch.zeros(10, 4), 1),
             "all": torch.zeros(3)}
    dcp.load(state, storage_reader=StepwellReader(path, 5))
    for name in ("w", "half"):
        assert torch.equal(state[name].full_tensor(), whole), name
    assert state["all"].tolist() == [1, 2, 3]
    print("loaded")
elif job == "fail":
    bad = {"sparse": torch.eye(2).to_sparse()} if rank == 1 else {}
    assert "cannot save sparse" in str(failure({"w": sharded(whole, 0), **bad}))
    print("refused")
elif job == "alone":
    state = {"w": sharded(whole, 0)}
    print(failure(state, no_dist=True) if rank == 0 else "")
dist.destroy_process_group()
