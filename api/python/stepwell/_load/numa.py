# SPDX-License-Identifier: Apache-2.0
"""Which NUMA node a device hangs on: what it gets should wait in that node's memory. Of CUDA's GPUs
the driver and Linux say it; those of other devices are not known."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from .. import _stepwell

ANY = -1

_BUS_ID_BYTES = 32


def node_of(device: Any) -> int:
    """Of a JAX device; ANY where it does not matter or is not known."""
    if device.platform not in ("gpu", "cuda"):
        return ANY
    ordinal = device.local_hardware_id
    return ANY if ordinal is None else _node_of_cuda_device(ordinal)


@functools.cache
def _node_of_cuda_device(ordinal: int) -> int:
    """`ordinal`: as the CUDA driver counts them in this process, where JAX has started it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ANY  # GPUs of another maker
    device = ctypes.c_int()
    bus_id = ctypes.create_string_buffer(_BUS_ID_BYTES)
    if (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal)
            or driver.cuDeviceGetPCIBusId(bus_id, _BUS_ID_BYTES, device)):
        return ANY
    return _stepwell.numa_node_of_pci_device(bus_id.value.decode())
