# SPDX-License-Identifier: Apache-2.0
"""The commands that change or examine: rm, pin, unpin, reclaim, stats, doctor."""

import os
import pathlib
import re
import subprocess
from typing import Any

import numpy as np
import pytest
import stepwell
from program import PROGRAM, document, error, ok, run


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    with stepwell.open(tmp_path / "run") as writer:
        for step in (1, 2, 10):
            items = {"params": {"w": np.full(3000, step)}, "dataset": {"epoch": step}}
            writer.save(step, items=items, metrics={"loss": 1 / step, "note": "x"})
    return tmp_path / "run"


def steps(store: pathlib.Path) -> list[int]:
    return [step["step"] for step in document("ls", store)["steps"]]


def pinned(store: pathlib.Path) -> list[int]:
    return [step["step"] for step in document("ls", store)["steps"] if step["pinned"]]


# ---- rm -----------------------------------------------------------------------------------------


def test_rm_deletes_steps(store: pathlib.Path) -> None:
    text = ok("rm", store, 10, 1, 1)
    assert re.fullmatch(r"deleted step 1, .* stored\ndeleted step 10, .* stored\n", text)
    assert steps(store) == [2]
    report = document("rm", store, "latest")
    assert (report["steps"], report["items"], report["dry_run"]) == ([2], [], False)
    assert report["stored_bytes"] > 0
    assert steps(store) == []


def test_ranges_of_steps(store: pathlib.Path) -> None:
    assert ok("pin", store, "2-10") == "pinned step 2\npinned step 10\n"
    assert "has no step from 3 to 9" in error("unpin", store, "3-9", status=3)
    assert "STEP must be a number" in error("unpin", store, "3-x", status=2)
    assert pinned(store) == [2, 10]
    ok("unpin", store, 2, "0-2", "latest")
    assert pinned(store) == []
    assert document("rm", store, 1, "1-9")["steps"] == [1, 2]
    assert steps(store) == [10]


def test_rm_of_an_item(store: pathlib.Path) -> None:
    text = ok("rm", store, 1, 2, "--item", "dataset")
    assert text.startswith("deleted step 1 item dataset, ")
    items = {step["step"]: step["items"] for step in document("ls", store)["steps"]}
    assert items == {1: ["params"], 2: ["params"], 10: ["params", "dataset"]}
    assert document("cat", store, 1, "params/w", "--full")["value"] == [1] * 3000
    assert "has no item dataset; it has: params" in error(
        "rm", store, 10, 1, "--item", "dataset", status=3
    )
    message = error("rm", store, 10, "--item", "dataset", "--item", "params", status=2)
    assert "would have no item left" in message
    assert document("ls", store)["steps"][2]["items"] == ["params", "dataset"]


def test_rm_dry_run_changes_nothing(store: pathlib.Path) -> None:
    assert ok("rm", store, 1, "--dry-run").startswith("would delete step 1, ")
    assert document("rm", store, 2, "--item", "params", "--dry-run")["dry_run"] is True
    assert "7" in error("rm", store, 7, "--dry-run", status=3)
    with stepwell.open(store):  # takes no lock
        assert document("rm", store, 2, "--dry-run")["steps"] == [2]
    assert steps(store) == [1, 2, 10]


def test_rm_deletes_all_or_nothing(store: pathlib.Path) -> None:
    message = error("rm", store, 1, 7, status=3)
    assert "no step 7" in message and "2 and 10" in message
    ok("pin", store, 2)
    assert "step 2 is pinned" in error("rm", store, 1, 2, status=1)
    assert document("rm", store, 1, 2, status=1)["error"]["code"] == "error"
    assert "STEP must be a number" in error("rm", store, 1, "x", status=2)
    assert steps(store) == [1, 2, 10]


# ---- pin, unpin ---------------------------------------------------------------------------------


def test_pin_and_unpin(store: pathlib.Path) -> None:
    assert ok("pin", store, 2, "latest") == "pinned step 2\npinned step 10\n"
    assert pinned(store) == [2, 10]
    header, *lines = ok("ls", store).splitlines()
    assert header.split() == "STEP COMMITTED ITEMS LEAVES SIZE STORED RATIO PIN loss".split()
    assert ["pinned" in line for line in lines] == [False, True, True]
    assert document("stats", store)["pinned_steps"] == 2
    report = document("unpin", store, 10)
    assert (report["steps"], report["pinned"]) == ([10], False)
    assert pinned(store) == [2]
    assert "no step 3" in error("pin", store, 1, 3, status=3)
    assert pinned(store) == [2]
    with stepwell.open(store, keep=stepwell.policy.LatestN(1)) as writer:
        writer.save(11, items={"params": {"w": np.ones(1)}})
    assert steps(store) == [2, 11]


def test_taint_and_untaint(store: pathlib.Path) -> None:
    assert ok("taint", store, "latest", "loss \x1b spike") == "tainted step 10\n"
    assert ok("taint", store, "2-10", "loss spike") == "tainted step 2\ntainted step 10\n"
    report = document("taint", store, 1, "too early")
    assert (report["steps"], report["taint"]) == ([1], "too early")
    assert "only tainted steps" in error("show", store, "latest", status=3)
    report = document("untaint", store, 1, 2)
    assert (report["steps"], report["taint"]) == ([1, 2], None)
    header, *lines = ok("ls", store).splitlines()
    assert header.split() == "STEP COMMITTED ITEMS LEAVES SIZE STORED RATIO TAINT loss".split()
    assert ["loss spike" in line for line in lines] == [False, False, True]
    assert [step.get("taint") for step in document("ls", store)["steps"]] == [
        None, None, "loss spike"]
    assert document("show", store)["step"]["step"] == 2
    assert document("show", store, 10)["step"]["taint"] == "loss spike"
    assert "\ntainted: loss spike\n" in ok("show", store, 10)
    assert "tainted" not in ok("show", store)
    assert "no step 3" in error("taint", store, 3, "no", status=3)
    assert "WHY" in error("taint", store, 1, status=2)
    assert "WHY must say something" in error("taint", store, 1, "", status=2)
    assert "1024" in error("taint", store, 1, "x" * 1025, status=2)


def test_rollback(store: pathlib.Path) -> None:
    report = document("rollback", store, "--to", 2, "--taint", "loss spike")
    assert (report["to"], report["steps"], report["taint"]) == (2, [10], "loss spike")
    assert ok("rollback", store, "--to", 1, "--taint", "worse") == (
        "tainted step 2\ntainted step 10\n")
    assert "step 2 is tainted, 'worse'" in error("rollback", store, "--to", 2, status=2)
    assert "no step 3" in error("rollback", store, "--to", 3, status=3)
    assert "--to" in error("rollback", store, status=2)
    assert "WHY must say something" in error("rollback", store, "--to", 1, "--taint", "", status=2)
    ok("pin", store, 10)
    assert "pinned" in error("rollback", store, "--to", 1, status=1)
    assert steps(store) == [1, 2, 10]
    ok("unpin", store, 10)
    with stepwell.open(store) as writer:  # which is asked
        assert ok("rollback", store, "--to", "latest") == "deleted step 2\ndeleted step 10\n"
        assert writer.steps() == [1]
    report = document("rollback", store, "--to", 1, status=0)
    assert (report["to"], report["steps"], report["taint"]) == (1, [], None)
    result = run("rollback", store, "--to", 1)
    assert (result.returncode, result.stdout) == (0, "") and "no step above 1" in result.stderr


def test_a_verified_step_is_shown(store: pathlib.Path) -> None:
    ok("verify", store)
    assert document("show", store, 2)["step"]["verified"] is False  # no record by another process
    with stepwell.open(store) as writer:
        assert writer.verify(2).ok
    assert document("show", store, 2)["step"]["verified"] is True
    assert "\nverified\n" in ok("show", store, 2)
    assert "verified" not in ok("show", store, 1)


def test_the_process_that_writes_is_asked(store: pathlib.Path) -> None:
    with stepwell.open(store, keep=stepwell.policy.LatestN(1)) as writer:
        assert ok("pin", store, "1-2") == "pinned step 1\npinned step 2\n"
        assert pinned(store) == [1, 2]
        writer.save(11, items={"params": {"w": np.ones(1)}}).result()
        assert writer.steps() == [1, 2, 11]
        assert "step 1 is pinned" in error("rm", store, 1, status=1)
        assert ok("unpin", store, 1) == "unpinned step 1\n"
        assert ok("taint", store, 11, "loss spike") == "tainted step 11\n"
        assert writer.tainted_steps() == {11: "loss spike"} and writer.latest == 2
        assert ok("untaint", store, 11) == "untainted step 11\n"
        assert writer.tainted_steps() == {}
        assert "no step 10" in error("rm", store, 10, status=3)
        assert document("rm", store, 1)["steps"] == [1]
        assert writer.steps() == [2, 11]
        assert document("reclaim", store)["bytes_before"] > 0
        writer.save(12, items={"params": {"w": np.ones(1)}}).result()
        assert writer.steps() == [2, 12]
    assert steps(store) == [2, 12]


def test_what_only_the_writer_does_needs_the_lock(store: pathlib.Path) -> None:
    with stepwell.open(store):
        message = error("repair", store, status=5)
        assert f"locked by process {os.getpid()}" in message
        assert document("repair", store, status=5)["error"]["code"] == "locked"
    assert steps(store) == [1, 2, 10]


@pytest.mark.parametrize("command", ["rm", "pin", "unpin", "untaint", "reclaim", "stats"])
def test_what_is_not_a_store(tmp_path: pathlib.Path, command: str) -> None:
    arguments = [command, tmp_path / "nowhere"] + (
        [1] if command in ("rm", "pin", "unpin", "untaint") else [])
    assert "nowhere" in error(*arguments, status=3)
    assert list(tmp_path.iterdir()) == []


def test_words_that_are_not_choices(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for option, value, choices in (("--mode", "hardlink", "auto, copy, link, reflink"),
                                   ("--to", "orbx", "npz, orbax, safetensors"),
                                   ("--zarr", "4", "2, 3"), ("--layout", "v3", "v0, v1"),
                                   ("--leaves", "torch", "jax, numpy"),
                                   ("--on-unsupported", "", "error, skip, widen")):
        message = error("export", store, 1, tmp_path / "e", option, value, status=2)
        assert f'{option}: one of {choices}, not "{value}"' in message
    assert 'no command "foo"' in error("help", "foo", status=2)
    assert "ends before it begins" in error("rm", store, "10-2", status=2)
    assert "ranges are written as 100-200" in error("rm", store, "1..2", status=2)


# ---- doctor -------------------------------------------------------------------------------------


def test_doctor_looks_and_cleans_up(tmp_path: pathlib.Path) -> None:
    report = document("doctor", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert report["kernel"].startswith("Linux ")
    assert report["cores"] >= 1 and report["memory"]["total_bytes"] > 0
    space = os.statvfs(tmp_path)
    assert report["file_system"]["total_bytes"] == space.f_blocks * space.f_frsize
    assert report["file_system"]["locks"] is True
    direct = report["direct_io"]
    assert direct["available"] == (direct["offset_alignment_bytes"] > 1)
    text = ok("doctor", tmp_path)
    for row in ("kernel", "io_uring", "O_DIRECT", "file system", "space", "write speed"):
        assert re.search(rf"^{row} ", text, re.MULTILINE)


def test_doctor_names_what_measures_the_disk(tmp_path: pathlib.Path) -> None:
    command = document("doctor", tmp_path)["fio_command"].replace("--size=2G", "--size=8M").split()
    assert command[0] == "fio" and f"--directory={tmp_path}" in command
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def mount(directory: pathlib.Path, *arguments: str) -> Any:
    """The program's words about a directory with another file system, in a namespace of its own."""
    script = 'mount "$@" && exec "$0" doctor "${@: -1}"'
    namespace = ["unshare", "--mount"] + ([] if os.getuid() == 0 else ["--map-root-user"])
    command = [*namespace, "bash", "-c", script, str(PROGRAM), *arguments, str(directory)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_doctor_warns_of_memory_and_small_disks(tmp_path: pathlib.Path) -> None:
    text = mount(tmp_path, "-t", "tmpfs", "-o", "size=8m", "none")
    assert re.search(r"^file system +tmpfs on ", text, re.MULTILINE)
    assert re.search(r"^warning: .* is tmpfs: it lives in memory", text, re.MULTILINE)
    assert re.search(r"^warning: only 8\.0 MiB free on ", text, re.MULTILINE)


def test_doctor_of_what_is_no_directory(tmp_path: pathlib.Path) -> None:
    assert "give the directory" in error("doctor", tmp_path / "nowhere", status=3)
    (tmp_path / "file").write_text("x")
    assert "is not a directory" in error("doctor", tmp_path / "file", status=2)


# ---- completion ---------------------------------------------------------------------------------

COMMANDS = (
    "ls show cat diff history top bisect digest report serve verify stats explain export patch "
    "mirror retention rm pin unpin taint untaint rollback reclaim repair import push pull branch "
    "branches doctor completion"
).split()


def options_of(command: str) -> set[str]:
    """Long options that --help shows."""
    return set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)", ok(command, "--help"), re.MULTILINE))


def bash_completes(line: str, directory: pathlib.Path) -> list[str]:
    script = """
        source <("$0" completion bash)
        COMP_WORDS=($1); [[ $1 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        compopt() { :; }
        _stepwell
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", script, str(PROGRAM), line],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PATH": path},
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


def test_bash_completion(store: pathlib.Path) -> None:
    directory = store.parent
    (directory / "file").write_text("")
    every = [*COMMANDS, "--help", "--version"]
    assert sorted(bash_completes("stepwell ", directory)) == sorted(every)
    assert bash_completes("stepwell rec", directory) == ["reclaim"]
    assert bash_completes("stepwell ls ", directory) == ["run"]
    assert bash_completes("stepwell show run ", directory) == ["latest", "1", "2", "10"]
    assert bash_completes("stepwell show run 1", directory) == ["1", "10"]
    assert bash_completes("stepwell rm --dry-run run 1 2 l", directory) == ["latest"]
    assert bash_completes("stepwell diff run 1 ", directory) == ["latest", "1", "2", "10"]
    assert bash_completes("stepwell diff --other ", directory) == ["run"]
    assert bash_completes("stepwell cat run 1 x -o f", directory) == ["file"]
    assert bash_completes("stepwell cat run 1 x ", directory) == []
    assert bash_completes("stepwell show run 1 ", directory) == ["dataset/", "params/"]
    assert bash_completes("stepwell cat run 1 params/", directory) == ["params/w"]
    assert bash_completes("stepwell diff run 1 2 da", directory) == ["dataset/"]
    assert bash_completes("stepwell export run 1 x --path dataset/", directory) == ["dataset/epoch"]
    assert bash_completes("stepwell cat --slice 0 run ", directory)[0] == "latest"
    assert bash_completes("stepwell push run ", directory)[0] == "latest"
    assert bash_completes("stepwell push --follow run ", directory) == ["run"]
    assert bash_completes("stepwell bisect run --good ", directory) == ["latest", "1", "2", "10"]
    assert "sleep" in bash_completes("stepwell bisect run --good 1 --bad 2 -- sle", directory)
    assert bash_completes("stepwell completion ", directory) == ["bash", "fish", "zsh"]
    for command in COMMANDS:
        assert options_of(command) <= set(bash_completes(f"stepwell {command} -", directory))


def test_fish_completion(store: pathlib.Path) -> None:
    def completes(line: str) -> list[str]:
        script = f"{PROGRAM} completion fish | source; complete -C '{line}'"
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        result = subprocess.run(
            ["fish", "--no-config", "-c", script],
            capture_output=True,
            text=True,
            cwd=store.parent,
            env={**os.environ, "PATH": path, "HOME": str(store.parent)},
            timeout=60,
            check=False,
        )
        assert (result.returncode, result.stderr) == (0, "")
        return [re.split(r"\t", line)[0] for line in result.stdout.splitlines()]

    assert sorted(completes("stepwell ")) == sorted(COMMANDS)
    assert "run/" in completes("stepwell ls ")
    assert {"latest", "1", "2", "10"} <= set(completes("stepwell show run "))
    assert "latest" in completes("stepwell push run ")
    assert "run/" in completes("stepwell push --follow run ")
    assert completes("stepwell show run 1 ") == ["dataset/", "params/"]
    assert completes("stepwell cat run 1 params/") == ["params/w"]
    assert "--slice" in completes("stepwell cat --s")


def test_zsh_completion(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "_stepwell").write_text(ok("completion", "zsh"))
    subprocess.run(["zsh", "-n", str(tmp_path / "_stepwell")], check=True, timeout=60)
    # A terminal of zsh's own shows what it offers.
    script = f"""
        zmodload zsh/zpty
        export PATH={PROGRAM.parent}:$PATH
        cd {store.parent}
        zpty shell zsh -f -i
        zpty -w shell 'PS1=; unsetopt zle_bracketed_paste; fpath=({tmp_path} $fpath)
          autoload -Uz compinit; compinit -u -D; zstyle ":completion:*" list-colors ""; echo READY'
        zpty -r -m shell junk '*READY*READY*'
        zpty -w -n shell $'stepwell show run \\t\\t'
        zpty -r -m shell text '*latest*' && print -r -- "$text"
        zpty -d shell
    """
    result = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", result.stdout)
    assert re.search(r"\b1 +10 +2 +latest\b", shown), result


def test_completion_of_other_shells() -> None:
    assert "there is bash, fish, zsh" in error("completion", "tcsh", status=2)
    assert document("completion", "bash")["script"] == ok("completion", "bash")


def test_help_lists_the_commands() -> None:
    shown = re.findall(r"^  (\w+) {2,}\w", ok("--help").split("Subcommands:")[1], re.MULTILINE)
    assert sorted(shown) == sorted(COMMANDS)


def test_every_command_takes_json_and_says_so() -> None:
    for command in COMMANDS:
        assert {"--json", "--help"} <= options_of(command)
        assert document(command, "--no-such-option", status=2)["error"]["code"] == "usage"


def noisy_store(path: pathlib.Path, count: int) -> pathlib.Path:
    random = np.random.default_rng(4)
    with stepwell.open(path) as writer:
        for step in range(count):
            noise = random.integers(0, 256, 4 << 20, dtype=np.uint8)
            writer.save(step, {"params": {"w": noise}, "epoch": step})
    return path


def allocated(store: pathlib.Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in [store, *store.rglob("*")])


def test_repair_has_nothing_to_do_in_a_store_that_is_whole(store: pathlib.Path) -> None:
    assert ok("repair", store) == "nothing to repair\n"
    report = document("repair", store, "--accept")
    assert report["losses"] == [] and report["steps_rewritten"] == []


def store_without_frames(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "run"
    with stepwell.open(path) as store:
        store.save(1, {"w": np.zeros(4)}).result()
        store.save(2, {"w": np.ones(4)}).result()
    log = sorted((path / "segments").glob("*.seg"))[-1]
    os.truncate(log, 8192)
    return path


def test_repair_accepts_a_loss(tmp_path: pathlib.Path) -> None:
    """The frames of two steps are gone, and so are the copies of the first."""
    path = store_without_frames(tmp_path)
    assert "repair --accept" in error("show", path, "1", status=4)
    done = run("repair", path)
    assert done.returncode == 4 and "--accept" in done.stdout
    accepted = run("repair", path, "--accept")
    assert accepted.returncode == 0 and "accepted: data loss" in accepted.stdout
    assert ok("repair", path) == "nothing to repair\n"


def test_reclaim_gives_space_back(tmp_path: pathlib.Path) -> None:
    store = noisy_store(tmp_path / "run", 6)
    before = document("verify", store)["bytes"]
    ok("rm", store, *range(5))
    report = document("reclaim", store)
    assert report["bytes_after"] <= report["bytes_before"]
    assert ok("reclaim", store).startswith("gave back ")
    space = document("stats", store)["space"]
    assert before > 6 * (4 << 20)
    assert space["live_bytes"] < 2 * (4 << 20)
    assert space["dead_bytes"] < 4 << 20
    assert document("verify", store)["ok"] is True


def test_stats_accounts_for_every_byte(tmp_path: pathlib.Path) -> None:
    store = noisy_store(tmp_path / "run", 3)
    stats = document("stats", store)
    space = stats["space"]
    parts = ("live", "padding", "overhead", "dead", "reserved", "index", "other")
    assert sum(space[f"{part}_bytes"] for part in parts) == space["total_bytes"]
    assert space["live_bytes"] > 3 * (4 << 20)
    assert space["total_bytes"] == pytest.approx(allocated(store), abs=256 << 10)
    (item,) = stats["items"]
    assert (item["name"], item["steps"], item["leaves"]) == ("state", 3, 6)
    assert item["stored_bytes"] >= 3 * (4 << 20)
    text = ok("stats", store)
    for part in (*parts, "total"):
        assert re.search(rf"^{part} ", text, re.MULTILINE)
    assert re.search(r"^state +3 +6 ", text, re.MULTILINE)


def test_retention_beside_the_writer(store: pathlib.Path) -> None:
    assert ok("retention", store).startswith("keeps every step")
    keep = stepwell.policy.LatestN(2) | stepwell.policy.BestN(1, "loss")
    with stepwell.open(store, keep=keep) as writer:
        writer.pin(2)
        writer.save(11, {"x": 1}).result()
        text = ok("retention", store)
        assert text.splitlines()[:2] == [
            "keeps the latest 2 steps", '  and the step with the lowest "loss"'
        ]
        assert re.search(r"^ +2 +[0-9.]+ (?:Ki)?B  its pin$", text, re.MULTILINE)
        assert re.search(r"^ +10 +[0-9.]+ (?:Ki)?B  the step with the lowest", text, re.MULTILINE)
        assert re.search(r"^ +11 +[0-9.]+ (?:Ki)?B  the latest 2 steps$", text, re.MULTILINE)
        writer.save(12, {"x": 1}, metrics={"loss": 0.01}).result()
        report = document("retention", store)
        going = [step["step"] for step in report["steps"] if step["goes_next"]]
        assert going == [11]
        assert report["rules"] == ["the latest 2 steps", "the step with the lowest \"loss\""]
        writer.save(13, {"x": 1}).result()
        assert writer.steps() == [2, 12, 13]
    # The report needs no write access to anything.
    assert document("retention", store, "--untrusted")["rules"] == report["rules"]


def test_untrusted_stores_are_only_read(store: pathlib.Path) -> None:
    (store / "RECLAIM").unlink(missing_ok=True)
    before = sorted(store.iterdir())
    assert ok("ls", store) == ok("ls", store, "--untrusted")
    (store / "RECLAIM").unlink()
    ok("verify", store, "--untrusted")
    assert sorted(store.iterdir()) == before
    # Commands that change a store, or leave it to Python, know no such store.
    for command in (["reclaim", store], ["rm", store, 1], ["pin", store, 1], ["unpin", store, 1],
                    ["taint", store, 1, "no"], ["untaint", store, 1], ["repair", store],
                    ["rollback", store, "--to", 1],
                    ["import", store, store], ["push", store, 1, store], ["pull", store, store]):
        assert "not expected: --untrusted" in error(*command, "--untrusted", status=2)
