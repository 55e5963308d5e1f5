# SPDX-License-Identifier: Apache-2.0
"""Shardings: those that arrays were saved with, and those that restore arguments ask for."""

from __future__ import annotations

import json
from typing import Any

from ..._load.specs import concrete

from .libraries import jax_module


def parse_sharding(text: str) -> Any:
    """A saved sharding (Orbax's JSON) over the devices that are here; None if some are not."""
    jax = jax_module()

    try:
        saved = json.loads(text)
        if saved["sharding_type"] == "SingleDeviceSharding":
            wanted = saved["device_str"].replace("TFRT_CPU_", "cpu:")
            device = next(each for each in jax.local_devices()
                          if str(each).replace("TFRT_CPU_", "cpu:") == wanted)
            return jax.sharding.SingleDeviceSharding(device)
        if saved["sharding_type"] != "NamedSharding":
            return None
        return _named(saved)
    except (KeyError, ValueError, TypeError, StopIteration):
        return None


def _named(saved: dict[str, Any]) -> Any:
    jax = jax_module()
    import numpy as np

    devices = {device.id: device for device in jax.devices()}
    shape = saved["shape"]
    ids = (np.array(saved["device_mesh"]["mesh"], dtype=object).flat
           if saved.get("device_mesh") else None)
    here = ([devices[each["id"]] for each in ids] if ids is not None
            else list(devices.values())[:int(np.prod(shape))])
    kinds = {str(kind).rsplit(".", 1)[-1]: kind for kind in jax.sharding.AxisType}
    axis_types = tuple(kinds[str(name).rsplit(".", 1)[-1]]
                       for name in saved.get("axis_types") or ["Auto"] * len(shape))
    mesh = jax.sharding.Mesh(np.array(here, dtype=object).reshape(shape),
                             tuple(saved["axis_names"]), axis_types=axis_types)
    spec = jax.sharding.PartitionSpec(*[tuple(entry) if isinstance(entry, list) else entry
                                        for entry in saved["partition_spec"]])
    return jax.sharding.NamedSharding(mesh, spec, memory_kind=saved.get("memory_kind"))


def wanted_sharding(value: Any) -> Any:
    """A sharding of a target or of restore arguments: one of JAX, a Format around one, or
    metadata of one. ValueError if its mesh has no devices and jax.set_mesh has set none."""
    if value is None:
        return None
    if hasattr(value, "to_jax_sharding"):
        return value.to_jax_sharding()
    inner = getattr(value, "sharding", None)  # a jax.experimental.layout.Format
    found = concrete(value if inner is None else inner)
    if found is None:
        raise ValueError(f"{value} is over a mesh without devices, and jax.set_mesh has set none")
    return found
