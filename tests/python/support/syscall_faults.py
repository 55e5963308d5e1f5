# SPDX-License-Identifier: Apache-2.0
"""System calls of this process that fail from now on, on all its threads and for good: the kernel's
own filter answers instead of them."""

import ctypes
import struct

FDATASYNC, IO_URING_SETUP = 75, 425  # x86-64
_SET_MODE_FILTER, _ALL_THREADS, _SECCOMP = 1, 1, 317
_NO_NEW_PRIVILEGES = 38
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def fail(number: int, error: int) -> None:
    """Every call of system call `number` fails with `error`, and does nothing."""
    instructions = [
        struct.pack("HBBI", 0x20, 0, 0, 0),  # load the number
        struct.pack("HBBI", 0x15, 0, 1, number),  # not this one: skip the next
        struct.pack("HBBI", 0x06, 0, 0, _ERRNO | error),
        struct.pack("HBBI", 0x06, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if (libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0
            or libc.syscall(_SECCOMP, _SET_MODE_FILTER, _ALL_THREADS, program) != 0):
        raise OSError(ctypes.get_errno(), "seccomp")
