# SPDX-License-Identifier: Apache-2.0
"""Runs train_nnx.py, kills it in the middle, runs it again, looks at what it left, hands the newest
step to Orbax and TensorStore, and makes a page of the run.

    python api/examples/kill_and_resume.py run1

The last part of api/quickstart; needs the program `stepwell` on the PATH. Exits with 1 when
anything did not come out as promised.
"""

import pathlib
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

import stepwell

STEPS = 60
KILLED_AFTER = 30
TRAIN = pathlib.Path(__file__).with_name("train_nnx.py")
EXPORT = pathlib.Path(__file__).with_name("export_to_orbax.py")
LINE = re.compile(
    r"step +(?P<step>\d+) +loss (?P<loss>\S+) +(?P<rate>\S+) steps/s"
    r" +stall +(?P<stall>\S+) ms +(?P<speed>\S+) MB/s"
)


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def train(store: str, kill_after: int | None = None) -> tuple[list[re.Match[str]], list[str]]:
    """Runs the training in a child; the matched progress lines, and all other lines."""
    command = [sys.executable, str(TRAIN), store, "--steps", str(STEPS)]
    print("$", shlex.join(["python", "train_nnx.py", *command[2:]]), flush=True)
    progress, others = [], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print("  " + line, end="", flush=True)
            if match := LINE.match(line):
                progress.append(match)
                if kill_after == int(match["step"]):
                    # At a moment of its own: in the step, in a write, between them.
                    time.sleep(random.uniform(0, 1 / float(match["rate"])))
                    child.send_signal(signal.SIGKILL)
            else:
                others.append(line)
    if child.returncode != (-signal.SIGKILL if kill_after is not None else 0):
        sys.exit(f"the training ended with status {child.returncode}")
    return progress, others


def command_line(*arguments: str, tail: int | None = None) -> str:
    command = ["stepwell", *arguments]
    print("$", shlex.join(command) + (f" | tail -n {tail}" if tail else ""))
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = result.stdout.splitlines()
    print("\n".join("  " + line for line in lines[-(tail or len(lines)) :]), flush=True)
    return result.stdout


def main() -> None:
    store_path = sys.argv[1]

    say(f"Training {STEPS} steps with a checkpoint every step; SIGKILL after step {KILLED_AFTER}")
    before, _ = train(store_path, KILLED_AFTER)
    killed_at = int(before[-1]["step"])
    print(f"  killed (SIGKILL) at step {killed_at}")

    say("Again: it goes on after the last committed step")
    after, others = train(store_path)
    resumed = [match for line in others if (match := re.match(r"resumed after step (\d+)", line))]
    if not resumed:
        sys.exit("the second run did not find the steps of the first one")
    resumed_at = int(resumed[0][1])
    # A run that resumed has the state it had, bit for bit; so the same step has the same loss.
    losses = {int(match["step"]): match["loss"] for match in before}
    redone = [match for match in after if int(match["step"]) in losses]
    for match in redone:
        loss = losses[int(match["step"])]
        print(f"  step {match['step']}: loss {loss} before the kill, {match['loss']} now")
    print(f"  loss {before[-1]['loss']} at step {killed_at} before the kill; ", end="")
    print(f"{after[0]['loss']} at step {resumed_at + 1}, the first one after it")
    if any(match["loss"] != losses[int(match["step"])] for match in redone):
        sys.exit("the loss of a step came out otherwise than before the kill")

    say("Only the parameters of the newest step, without reading the optimizer's state")
    with stepwell.open(store_path, mode="r") as store:
        steps = store.steps()
        newest = max(steps)
        begin = time.perf_counter()
        params = store.load(newest, "params/**")
        seconds = time.perf_counter() - begin
        bytes_read = store.stats()["last_load"]["bytes_read"]
        step_bytes = store[newest].stored_bytes
    params_bytes = sum(leaf.nbytes for leaf in params.values())
    print(
        f"  {len(params)} arrays, {params_bytes / 1e6:.2f} MB, in {seconds * 1e3:.1f} ms: "
        f"read {bytes_read / 1e6:.2f} MB of the step's {step_bytes / 1e6:.2f} MB"
    )

    say("The store on the command line")
    command_line("ls", store_path, tail=5)
    command_line("show", store_path, "latest", "params/layers/0")
    verified = command_line("verify", store_path)

    say("The newest step for Orbax v1, Orbax v0 and TensorStore, and what they read of it")
    command = [sys.executable, str(EXPORT), store_path]
    print("$", shlex.join(["python", "export_to_orbax.py", store_path]), flush=True)
    if subprocess.run(command).returncode != 0:
        sys.exit("the export is not what was saved")

    say("The run as a page, which opens in a browser")
    page = f"{store_path}.html"
    command_line("report", store_path, "-o", page, "--replace")

    say("What happened")
    every = before + after
    stalls = [float(match["stall"]) for match in every]
    speeds = [float(match["speed"]) for match in every if float(match["speed"]) > 0]
    rows = [
        ("steps saved", f"{len({int(match['step']) for match in every})}, each with a checkpoint; "
                        f"the newest {len(steps)} kept"),
        ("loss", f"{every[0]['loss']} at step 0, {every[-1]['loss']} at step {every[-1]['step']}"),
        ("stall of the training loop", f"{statistics.median(stalls):.2f} ms a step (median)"),
        ("save, until durable", f"{statistics.median(speeds):.0f} MB/s (median)"),
        ("killed (SIGKILL)", f"after the save of step {killed_at} had begun"),
        ("resumed", f"after step {resumed_at}, at step {resumed_at + 1}"),
        ("read for the parameters", f"{bytes_read:,} of {step_bytes:,} bytes"),
        ("verify", verified.splitlines()[-1]),
        ("exported to Orbax", "equal bit for bit in every reader, on 1 device and on 8"),
        ("report", str(pathlib.Path(page).resolve())),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


if __name__ == "__main__":
    main()
