# SPDX-License-Identifier: Apache-2.0
"""One process of one contender: runs the tasks that it is told and reports each value as a line of
JSON: worker.py FILE_DESCRIPTOR SETTINGS. Started by rounds.py; it may be another interpreter."""

import importlib
import json
import logging
import os
import shutil
import sys
import time
import traceback
from typing import Any

import machine
from contenders import load_class
from themes import Job


def _run(task: dict[str, str], job: Job, keep: bool) -> None:
    module, function = task["function"].split(":")
    try:
        getattr(importlib.import_module("themes." + module), function)(job)
    finally:
        for contender in job.close():
            if not keep:
                shutil.rmtree(contender.directory)
        if job.settings["settle"]:  # so that nobody pays for what this task left to be written
            machine.settle(job.directory)


def main() -> int:
    channel = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    settings = json.loads(sys.argv[2])

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=channel)

    logging.disable(logging.INFO)
    try:
        make = load_class(settings["contender"])
    except ImportError as error:
        emit({"missing": str(error)})
        return 1
    emit({"hello": {"name": make.name, "kinds": make.kinds, "durable": make.durable,
                    "version": machine.version(make.package)}})
    for task in settings["tasks"]:
        emit({"begin": task["name"]})
        start = time.perf_counter()
        try:
            _run(task, Job(make, settings, emit), settings["keep"])
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            emit({"error": text[:200], "task": task["name"]})
        emit({"end": task["name"], "seconds": time.perf_counter() - start})
    return 0


if __name__ == "__main__":
    sys.exit(main())
