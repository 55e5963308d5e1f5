# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of importing."""

import subprocess
import sys

from themes import Job

CODE = """
import time
a = time.perf_counter(); import numpy
b = time.perf_counter(); {line}
c = time.perf_counter(); print(b - a, c - b)
"""


def run(job: Job) -> None:
    out = subprocess.run([sys.executable, "-c", CODE.format(line=job.make.import_line)],
                         capture_output=True, text=True, check=True).stdout
    numpy, module = map(float, out.split()[-2:])
    job.emit("start/import", module, numpy)
