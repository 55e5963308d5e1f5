# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own ways, on CPU tensors that share the NumPy state's memory."""

import contextlib
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import states
import torch
import torch.distributed.checkpoint as dcp
from contenders.base import Contender, FileContender, fsync, loader

warnings.filterwarnings("ignore", message=".*torch.distributed.*")  # that there is one process


def tensors(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: tensors(child) for name, child in tree.items()}
    return torch.from_numpy(tree)


def arrays(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: arrays(child) for name, child in tree.items()}
    return tree.numpy()


class TorchSave(FileContender):
    key = "torch-save"
    name = "torch.save + fsync"
    package = "torch"
    import_line = "import torch"
    opens_once = True
    kinds = ("NumPy",)

    def write(self, file: pathlib.Path, state: Any) -> None:
        torch.save(tensors(state), file)

    def restore(self, like: Any) -> Any:
        return arrays(torch.load(self.path(self.step), weights_only=True))

    def load_part(self, name: str, like: Any) -> Any:
        # Mapped, then copied, as it would be to use it.
        whole = torch.load(self.path(self.step), weights_only=True, mmap=True)
        return states.tree_map(lambda array: array.copy(), arrays(whole[name]))

    @contextlib.contextmanager
    def open_leaf(self, like: dict[str, Any]) -> Iterator[Callable[[str], Any]]:
        whole = torch.load(self.path(self.step), weights_only=True, mmap=True)
        yield lambda name: whole[name].numpy().copy()


class TorchDcp(Contender):
    """torch.distributed.checkpoint in one process; its writer syncs its files by default."""

    key = "torch-dcp"
    name = "torch DCP"
    package = "torch"
    import_line = "import torch.distributed.checkpoint"
    durable = True
    kinds = ("NumPy",)

    def begin(self, state: Any) -> None:
        dcp.save(tensors(state), checkpoint_id=self.path(self.step))
        fsync(self.path(self.step))
        fsync(self.directory)

    def _load(self, like: Any) -> Any:
        target = tensors(states.tree_map(states.empty_like, like))
        dcp.load(target, checkpoint_id=self.path(self.step))
        return arrays(target)

    def restore(self, like: Any) -> Any:
        return self._load(like)

    def load_part(self, name: str, like: Any) -> Any:
        return self._load({name: like})[name]

    def open_leaf(self, like: dict[str, Any]) -> Any:
        return loader(lambda name: self.load_part(name, like[name]))
