# SPDX-License-Identifier: Apache-2.0
"""Composite: items by name."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, ValuesView
from typing import Any


class CompositeMapping(Mapping[str, Any]):
    """Items by name: `c.params`, `c["params"]`, `"params" in c`. It cannot be changed."""

    _items: dict[str, Any]

    def __init__(self, **items: Any) -> None:
        super().__setattr__("_items", items)
        reserved = set(dir(self))
        for key, value in items.items():
            if key.startswith("__"):
                raise ValueError(f'Composite keys cannot start with "__". Got: {key}')
            if key not in reserved:
                super().__setattr__(key, value)

    def __getitem__(self, key: str) -> Any:
        if key not in self._items:
            raise KeyError(f"Unknown key: {key}. Available keys: {self._items.keys()}")
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, key: str) -> Any:
        if key == "_items":  # while a copy is being made
            raise AttributeError(key)
        return self[key]

    def __setattr__(self, key: str, value: Any) -> None:
        raise ValueError("Composite is immutable after initialization.")

    def __reduce__(self) -> Any:
        return _make, (type(self), self._items)

    def get(self, key: str, default: Any = None) -> Any:
        return self._items.get(key, default)

    def __and__(self, other: Mapping[str, Any]) -> Any:
        return type(self)(**{key: self._items[key] for key in self._items if key in other})

    def __or__(self, other: Mapping[str, Any]) -> Any:
        return type(self)(**{**self._items, **dict(other)})

    def __repr__(self) -> str:
        return f"Composite({self._items!r})"

    def keys(self) -> KeysView[str]:
        return self._items.keys()

    def values(self) -> ValuesView[Any]:
        return self._items.values()

    def __contains__(self, key: object) -> bool:
        return key in self._items


def _make(cls: type[CompositeMapping], items: dict[str, Any]) -> CompositeMapping:
    return cls(**items)
