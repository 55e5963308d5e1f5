#!python
# SPDX-License-Identifier: Apache-2.0
"""The script `stepwell` of an environment. The program is a function of the package's module. That
is loaded, not imported: importing NumPy takes longer than most commands."""

import ctypes
import importlib.machinery
import importlib.util
import os
import signal
import sys

package = importlib.util.find_spec("stepwell")
module = package and importlib.machinery.PathFinder.find_spec(
    "_stepwell", package.submodule_search_locations)
if not module or not module.origin:
    sys.exit(f"stepwell: the Python package stepwell is not installed for {sys.executable}")
try:
    program = ctypes.CDLL(module.origin).stepwell_program
except (OSError, AttributeError) as error:
    sys.exit(f"stepwell: {sys.executable} cannot load the package stepwell: {error}")
os.environ.setdefault("STEPWELL_PYTHON", sys.executable)  # push and pull come back to it
signal.signal(signal.SIGINT, signal.SIG_DFL)
words = [b"stepwell", *map(os.fsencode, sys.argv[1:])]
sys.exit(program(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None)))
