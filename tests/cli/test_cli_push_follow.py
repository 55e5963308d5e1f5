# SPDX-License-Identifier: Apache-2.0
"""`stepwell push --follow`: keeps a pushed run up to date beside the process that trains."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import stepwell
from program import PROGRAM, error, parsed_document
from s3_server import serving

LINE = re.compile(r"pushed step (\d+): [\d.]+ \w+ sent, (up to date|\d+ steps? behind)\n")

OPTIONS = {"region": "x", "access_key_id": "x", "secret_access_key": "x", "allow_http": "true",
           "virtual_hosted_style_request": "false"}

# Saves as many steps as a line of its stdin says, and then says the number of the last.
TRAINER = """
import sys
import numpy as np, stepwell

w = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
with stepwell.open(sys.argv[1], delta=True, keep=stepwell.policy.LatestN(5)) as store:
    step = -1
    for line in sys.stdin:
        for _ in range(int(line)):
            step += 1
            w[step % 512] = step
            store.save(step, {"w": w, "n": step}).result()
        print(step, flush=True)
"""


class Process:
    """A child whose lines are read one by one."""

    def __init__(self, *command: object) -> None:
        self.popen = subprocess.Popen(list(map(str, command)), text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def line(self) -> str:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.popen.communicate()
        return line

    def pushed(self) -> tuple[int, str]:
        """The next step that was pushed, and how far behind that is."""
        line = self.line()
        found = LINE.fullmatch(line)
        assert found, line
        return int(found[1]), found[2]

    def pushes_up_to(self, step: int) -> list[int]:
        pushed: list[int] = []
        while not pushed or pushed[-1] < step:
            pushed.append(self.pushed()[0])
        return pushed

    def warning(self) -> str:
        assert self.popen.stderr is not None
        return self.popen.stderr.readline()

    def ended(self, stop: signal.Signals | None = None) -> tuple[int, str, str]:
        if stop is not None:
            self.popen.send_signal(stop)
        assert self.popen.stdout is not None and self.popen.stderr is not None
        out, err = self.popen.stdout.read(), self.popen.stderr.read()
        return self.popen.wait(60), out, err


class Trainer(Process):
    def __init__(self, run: pathlib.Path) -> None:
        super().__init__(sys.executable, "-c", TRAINER, run)

    def saves(self, count: int) -> int:
        """Returns the last of so many steps, which are durable then."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{count}\n")
        self.popen.stdin.flush()
        return int(self.line())


@contextlib.contextmanager
def killed_at_the_end(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for each in processes:
            each.popen.kill()
            each.popen.communicate()


def follow(*arguments: object) -> Process:
    return Process(PROGRAM, "push", "--follow", *arguments)


def words_of(options: dict[str, str]) -> list[str]:
    return [f"--option={name}={value}" for name, value in options.items()]


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


def pulled(run: pathlib.Path, place: object, step: int, **where: object) -> None:
    """The place has the step as it is in the run."""
    with stepwell.open(run.parent / "other") as other, stepwell.open(run, mode="r") as store:
        other.pull(place, step, **where)
        assert other.digest(step) == store.digest(step)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_directory_follows_a_trainer(run: pathlib.Path, stop: signal.Signals) -> None:
    trainer = Trainer(run)
    trainer.saves(1)
    place = run.parent / "place"
    program = follow(run, place, "--keep", 2)
    with killed_at_the_end(trainer, program):
        assert program.pushed() == (0, "up to date")
        for count in (1, 1, 20, 1):
            last = trainer.saves(count)
            program.pushes_up_to(last)
        assert program.ended(stop) == (0, f"stopped at step {last}, up to date\n", "")
        assert trainer.saves(1) == last + 1
    there = [each.step for each in stepwell.pushed_steps(place)]
    assert len(there) == 2 and there[-1] == last
    pulled(run, place, last)


def test_a_place_that_is_slow_refuses_or_is_down(run: pathlib.Path) -> None:
    """The trainer saves meanwhile, and the place catches up behind it."""
    with contextlib.ExitStack() as stack:
        trainer = Trainer(run)
        trainer.saves(1)
        served = stack.enter_context(contextlib.ExitStack())
        bucket = served.enter_context(serving())
        options = {"endpoint": bucket.url, **OPTIONS}
        program = follow(run, "s3://bucket/run", *words_of(options))
        stack.enter_context(killed_at_the_end(trainer, program))
        assert program.pushed() == (0, "up to date")

        going, asked = threading.Event(), threading.Event()
        bucket.refuse = lambda key, part: asked.set() or not going.wait(60)
        trainer.saves(1)
        assert asked.wait(60)
        last = trainer.saves(20)
        going.set()
        assert program.pushes_up_to(last) in ([1, 21], [21])  # the run may drop step 1 meanwhile

        bucket.refuse = lambda key, part: True
        trainer.saves(1)
        assert "it is tried again" in program.warning()
        last = trainer.saves(20)
        bucket.refuse = lambda key, part: False
        assert program.pushes_up_to(last) == [42]

        served.close()
        last = trainer.saves(20)  # nothing listens there now
        served.enter_context(serving(bucket))
        program.pushes_up_to(last)
        assert program.pushes_up_to(trainer.saves(1)) == [last + 1]
        status, out, err = program.ended(signal.SIGTERM)
        assert (status, out) == (0, f"stopped at step {last + 1}, up to date\n"), err
        pulled(run, "s3://bucket/run", last + 1, storage_options=options)


def test_a_signal_ends_a_push_to_a_place_that_does_not_answer(run: pathlib.Path) -> None:
    with stepwell.open(run) as store:
        for step in (3, 4):
            store.save(step, {"w": np.arange(5)}).result()
    going, asked = threading.Event(), threading.Event()

    def hang(key: str, part: int) -> bool:
        asked.set()
        return not going.wait(60)

    with serving() as bucket:
        bucket.refuse = hang
        program = follow(run, "s3://bucket/run", "--json",
                         *words_of({"endpoint": bucket.url, **OPTIONS}))
        with killed_at_the_end(program):
            assert asked.wait(60)
            status, out, err = program.ended(signal.SIGTERM)
            going.set()
    assert (status, "which ends by itself" in err) == (0, True), err
    assert parsed_document(out) == {
        "schema": 1, "store": str(run), "pushed": None, "pushes": 0, "sent_bytes": 0, "behind": 2,
        "error": None}


def test_what_is_wrong(run: pathlib.Path) -> None:
    place = run.parent / "place"
    assert "no" in error("push", "--follow", run, place, status=3)
    with stepwell.open(run) as store:
        store.save(3, {"w": np.arange(5)}).result()
        place.mkdir()
        (place / "thesis").write_text("")
        assert "is not a pushed run, and not empty" in error(
            "push", "--follow", run, place, status=1)
    assert "URL is required" in error("push", run, 3, status=2)
    assert "no STEP" in error("push", "--follow", run, 3, place, status=2)
    assert "--leaves" in error("push", "--follow", "--leaves", "jax", run, place, status=2)
    assert "--follow" in error("push", "--keep", 2, run, 3, place, status=2)
    assert "keep" in error("push", "--follow", "--keep", 0, run, place, status=2)


def test_a_run_that_cannot_be_read_any_more_ends_it(run: pathlib.Path) -> None:
    with stepwell.open(run) as store:
        store.save(3, {"w": np.arange(5)}).result()
    program = follow(run, run.parent / "place")
    with killed_at_the_end(program):
        assert program.pushed() == (3, "up to date")
        os.truncate(run / "STEPWELL", 10)
        status, out, err = program.ended()
        assert (status, out) == (1, "") and "too short for a Stepwell store" in err
