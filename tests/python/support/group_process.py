# SPDX-License-Identifier: Apache-2.0
"""group_process.py PROCESS PROCESSES PORT DEVICES PLAN: one of several processes of a run that
saves and loads together. PLAN is JSON: {"roots": [path of each process], "acts": [[name,
{arguments}], ...], "kill": [act, process, point] or null, "timeout": seconds, "posix": bool}.
Prints one line of JSON for each act: what it gave, or the error. Run by test_group.py,
test_local_disks.py, test_local_exports.py and soak_group.py."""

import errno
import json
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PROCESS, PROCESSES, PORT, DEVICES = (int(text) for text in sys.argv[1:5])
PLAN = json.loads(sys.argv[5])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import syscall_faults  # noqa: E402
from group_values import EVERY_LEAF, LEAVES, digest_of, values  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import stepwell  # noqa: E402
from stepwell._distributed import group, local_disks_export, lockstep, snapshot  # noqa: E402
from stepwell._distributed.coordinator import Coordinator  # noqa: E402


def mesh() -> Mesh:
    devices = np.array(jax.devices())
    return Mesh(devices.reshape(2, -1), ("x", "y"))


def state(step: int, leaves: list[str] | None = None) -> dict[str, Any]:
    arrays = {}
    for name in leaves or LEAVES:
        shape, spec = EVERY_LEAF[name]
        sharding = NamedSharding(mesh(), PartitionSpec(*spec))
        arrays[name] = jax.make_array_from_callback(
            shape, sharding, lambda index, name=name: values(name, step)[index])
    return {"params": arrays, "count": step, "name": "run", "host": np.full(7, step)}


def local_leaf(kind: str, value: int) -> dict[str, Any]:
    """A leaf that each process has for itself."""
    mine = Mesh(np.array(jax.local_devices()), ("x",))
    many = jax.device_put(np.full((4, 2), value), NamedSharding(mine, PartitionSpec("x")))
    made: dict[str, Any] = {
        "jax": jax.numpy.full(3, value), "numpy": np.full((2, 3), value).T, "mesh": many,
        "bfloat16": jax.numpy.full((), value, "bfloat16"), "number": value, "text": f"run {value}",
        "transposed": jax.device_put(np.array([[0, 1], [2, 3]]).T if value else
                                     np.array([[0, 1], [2, 3]]), NamedSharding(
                                         mine, PartitionSpec(*[None] * value, "x"))),
        "keys": {1 if value else "1": 0},
        "kind": np.float32(1) if value else np.ones((), np.float32),
        "key": jax.random.key(value), "scalar": np.float16(value), "flag": bool(value),
        "bytes": bytes([value]), "empty": np.zeros((0, 2))}
    if kind == "crossed":  # on the devices of the other process, for both
        others = [device for device in jax.devices() if device.process_index != PROCESS]
        made[kind] = jax.make_array_from_callback(
            (4,), NamedSharding(Mesh(np.array(others), ("x",)), PartitionSpec("x")),
            lambda index: np.zeros(4, np.float32)[index], dtype=np.float32)
    return {"local": {kind: made[kind]}}


# ---- dying --------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def kill_at(owner: Any, method: str, nth: int, after: bool) -> None:
    """SIGKILL before or after the `nth` call of a method from now on."""
    original: Callable[..., Any] = getattr(owner, method)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            die()
        result = original(*args, **kwargs)
        if calls == nth and after:
            die()
        return result

    setattr(owner, method, counted)


# Named points at which a process may die in one save, each with the patch that kills it there.
POINTS: dict[str, Callable[[], None]] = {
    "before_prepare": lambda: kill_at(group.Group, "next_number", 1, after=False),
    "begun": lambda: kill_at(group.Group, "submit", 1, after=True),
    "before_vote": lambda: kill_at(Coordinator, "put", 1, after=False),
    "after_vote": lambda: kill_at(Coordinator, "put", 1, after=True),
    "before_decide": lambda: kill_at(group.Group, "decide", 1, after=False),
    "after_decide": lambda: kill_at(group.Group, "decide", 1, after=True),
    "after_broadcast": lambda: kill_at(Coordinator, "put", 2, after=True),
    "read": lambda: kill_at(group.Group, "submit", 1, after=False),
    "in_export": lambda: kill_at(local_disks_export, "copy_part", 1, after=True),
    "in_load": lambda: kill_at(lockstep.Lockstep, "exchange", 2, after=False),
}


def dawdle(seconds: float) -> None:
    original = group.Group.submit

    def later(self: Any, op: Any) -> Any:
        group.Group.submit = original
        threading.Event().wait(seconds)
        return original(self, op)

    group.Group.submit = later


def in_progress(seconds: float = 0, text: str = "") -> Callable[[int, int], None]:
    """Makes the progress callback of an export: the first time it takes long, or fails."""
    calls = 0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(seconds)
        if text:
            raise RuntimeError(text)

    return progress


def flip(path: pathlib.Path, array: jax.Array) -> int:
    """Changes a byte of what is stored of it, uncompressed, if that is in this file."""
    wanted = np.asarray(array.addressable_shards[0].data).reshape(-1)[:16].tobytes()
    at = path.read_bytes().find(wanted)
    if at < 0:
        return 0
    with open(path, "r+b") as file:
        file.seek(at + 5)
        file.write(bytes([wanted[5] ^ 1]))
    return 1


# ---- failing ------------------------------------------------------------------------------------


def raise_at(owner: Any, method: str, error: Exception, after: bool = False, calls: int = 1
             ) -> None:
    """The next calls of a method fail, before or after they have done their work."""
    original: Callable[..., Any] = getattr(owner, method)
    left = calls

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            setattr(owner, method, original)
        if after:
            original(*args, **kwargs)
        raise error

    setattr(owner, method, failing)


def no_flush() -> None:
    """From the next decision on the disk fails each flush, though what was written stays."""
    original = group.Group.decide

    def decide(self: Any, op: Any, decision: Any) -> Any:
        syscall_faults.fail(syscall_faults.FDATASYNC, errno.EIO)
        return original(self, op, decision)

    group.Group.decide = decide  # type: ignore[method-assign]


def no_broadcast() -> None:
    """The coordination service is gone once process 0 has decided."""
    original = group.Group.decide

    def decide(self: Any, op: Any, decision: Any) -> Any:
        decision = original(self, op, decision)
        raise_at(Coordinator, "put", stepwell.PeerError("no service"), calls=1)
        return decision

    group.Group.decide = decide  # type: ignore[method-assign]


# Named faults that may strike one save, delete or pin of a process.
FAULTS: dict[str, Callable[[], None]] = {
    "flush": no_flush,
    "after_decide": lambda: raise_at(group.Group, "decide", MemoryError("no memory"), after=True),
    "before_decide": lambda: raise_at(group.Group, "decide", MemoryError("no memory")),
    "left": lambda: raise_at(group.Group, "_settle_left", stepwell.StorageError("a left part")),
    "advance": lambda: raise_at(snapshot.StepList, "advance", MemoryError("no memory")),
    "no_broadcast": no_broadcast,
}


# ---- acts ---------------------------------------------------------------------------------------


def check_step(store: stepwell.Store, step: int, leaves: list[str] | None = None) -> str:
    """Loads a step as it was saved, as NumPy and onto another mesh, and compares."""
    want = {name: values(name, step) for name in leaves or LEAVES}
    here = state(step, leaves)
    loaded = store.load(step, like=here)
    assert loaded["count"] == step and loaded["name"] == "run"
    np.testing.assert_array_equal(loaded["host"], np.full(7, step))
    other = Mesh(np.array(jax.devices()).reshape(-1, 2), ("y", "x"))
    for name, array in loaded["params"].items():
        assert array.sharding == here["params"][name].sharding, name
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), want[name][shard.index], name)
    specs = {f"params/{name}": PartitionSpec(*spec) for name, (_, spec) in EVERY_LEAF.items()
             if name in want}
    moved = store.load(step, "params", mesh=other, specs=specs)
    for name, array in moved.items():
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), want[name][shard.index], name)
    return "equal"


class Stateful:
    calls = 0

    def get_state(self) -> Any:
        raise AssertionError

    def set_state(self, state: Any) -> None:
        self.calls += 1


def main() -> None:
    if PLAN.get("posix"):  # so that every write and flush is a system call
        syscall_faults.fail(syscall_faults.IO_URING_SETUP, errno.EPERM)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, PROCESS,
                               heartbeat_timeout_seconds=10)
    store: stepwell.Store | None = None
    for number, (act, arguments) in enumerate(PLAN["acts"]):
        kill = PLAN.get("kill")
        if kill and kill[0] == number and kill[1] == PROCESS:
            POINTS[kill[2]]()
        try:
            if act == "open":
                roots = arguments.pop("roots", PLAN["roots"])
                signals = arguments.pop("signals", None)
                save = stepwell.policy.SaveOnPreemption(signals) if signals else None
                if arguments.pop("own_metadata", False):
                    arguments["metadata"] = {"process": PROCESS}
                keep = stepwell.policy.LatestN(arguments["keep"]) if "keep" in arguments else None
                if arguments.pop("keep_last_verified", False):
                    assert keep is not None
                    keep |= stepwell.policy.LastVerified()
                store = stepwell.open(roots[PROCESS], process_timeout=PLAN["timeout"],
                                      **{**arguments, "save": save, "keep": keep})
                gave: Any = store.steps()
            elif act == "save":
                step = arguments["step"] + arguments.get("add", {}).get(str(PROCESS), 0)
                leaves = arguments.get("leaves", {}).get(str(PROCESS))
                own = PROCESS if arguments.get("local_differs") else 0
                local = local_leaf(arguments["local"], own) if "local" in arguments else {}
                metadata = {"at": step + PROCESS if arguments.get("metadata_differs") else step}
                content = arguments.get("content", step)
                saved = store.save(step, {**state(content, leaves), **local},
                                   metadata=metadata, metrics=arguments.get("metrics"),
                                   if_exists=arguments.get("if_exists", "error"))
                gave = saved.result()
                own_part = saved.stats
                assert (own_part is None) is saved.skipped
                assert own_part is None or own_part.logical_bytes > 0
            elif act == "import":
                source = arguments["from"]  # of all processes, or of each
                handle = store.import_checkpoint(
                    source if isinstance(source, str) else source[PROCESS], **arguments["how"])
                gave = [handle.result(), handle.skipped] if "skipped" in arguments \
                    else handle.result()
            elif act == "import_all":
                gave = store.import_checkpoints(arguments["from"], **arguments["how"])
            elif act == "fault":  # in what this process does next
                if PROCESS == arguments["process"]:
                    FAULTS[arguments["point"]]()
            elif act == "dawdle":  # between reading and saying so, in the next import
                if PROCESS == arguments["process"]:
                    dawdle(arguments["seconds"])
            elif act == "load_or":
                resumed = store.load_or(state(0, arguments["leaves"]), on_corrupt="previous")
                gave = [resumed.next_step, list(resumed.skipped)]
            elif act == "digest":
                gave = digest_of(store.load(arguments["step"]))
            elif act == "pull":
                gave = store.pull(arguments["from"]).step
            elif act == "check":
                gave = check_step(store, **arguments)
            elif act == "retention":
                report = store.retention()
                gave = [repr(report.policy), report.goes_next]
            elif act == "steps":
                gave = store.steps()
            elif act == "delete":
                store.delete(arguments["steps"])
                gave = store.steps()
            elif act == "reclaim":
                store.reclaim()
                gave = "reclaimed"
            elif act == "export":  # by one process, beside the others
                gave = None
                if PROCESS == arguments.pop("process"):
                    gave = store.export(**arguments).mode
            elif act == "view":
                gave = None
                if PROCESS == 0:
                    store.orbax_view(**arguments).wait(60)
            elif act == "look":
                view = store[arguments["step"]]
                gave = [view.metadata, len(view), view.items, view.pinned,
                        view["params/both"][2:5, ::3].tolist(), view["name"]]
            elif act == "content":
                gave = [store.digest(arguments["step"]),
                        stepwell.digest(store.load(arguments["step"]))]
            elif act == "changed":
                found = store.changed(*arguments["steps"], elements=arguments["elements"])
                gave = [{path: [leaf.chunks_changed, leaf.chunks, leaf.elements]
                         for path, leaf in found.changed.items()}, found.unchanged,
                        store.stats()["last_load"]["chunks"]]
            elif act == "history":
                found = store.history(**arguments)
                gave = [found.steps, found.values.tolist()]
            elif act == "push":
                gave = store.push(None, arguments["to"])
            elif act == "pin":
                store.pin(arguments["step"])
                gave = store.pinned_steps()
            elif act == "taint":
                own = f" of {PROCESS}" if arguments.get("own") else ""
                store.taint(arguments["step"], arguments["why"] + own)
                gave = store.tainted_steps()
            elif act == "untaint":
                store.untaint(arguments["step"])
                gave = store.tainted_steps()
            elif act == "rollback":
                gave = store.rollback(**arguments)
            elif act == "tainted":
                gave = store.tainted_steps()
            elif act == "verify_in_background":
                store.verify_in_background(1e12)
                while (found := store.stats()["verification"])["running"] and (
                        found["steps"] < arguments["steps"]):
                    time.sleep(0.01)
                gave = [found["running"], found["steps"], found["damaged"]]
            elif act == "verify":
                report = store.verify()
                gave = [report.chunks, [problem.message for problem in report.problems]]
            elif act == "differ":  # what each wants is its own affair
                path = arguments["paths"][PROCESS]
                gave = np.asarray(store.load(arguments["step"], path, like=np.zeros(
                    LEAVES[path.split("/")[1]][0], np.float32))).tolist()
            elif act == "misfit":  # on one process alone
                like = np.zeros(16 if PROCESS == arguments["process"] else 24, np.float32)
                gave = store.load(arguments["step"], "params/tuple", like=like).tolist()
            elif act == "loop":  # until a signal to one process has reached all
                for step in range(1000):
                    if step == arguments["at"] and PROCESS == arguments["process"]:
                        os.kill(os.getpid(), arguments["signal"])
                    if store.should_save(step):
                        store.save(step, state(step)).result()
                    if store.preempted:
                        break
                    time.sleep(0.01)
                gave = [step, store.steps()]
            elif act == "metadata":
                gave = store.metadata
            elif act == "best":
                gave = [list(store.steps(metrics=True).items()), store.best("loss"),
                        store.best("loss", "max"), store[-1].step, store[-2].metrics]
            elif act == "stateful":  # an object takes the state where no process has a misfit
                misfit = PROCESS == arguments["misfit"]
                taken = Stateful()
                try:
                    store.load(arguments["step"], "host", like=np.zeros(1) if misfit else taken)
                    error_name = ""
                except stepwell.Error as error:
                    error_name = type(error).__name__
                gave = [error_name, taken.calls]
            elif act == "odd":
                import group_odd

                with stepwell.open(arguments["shared"]) as shared:
                    gave = group_odd.compare(store, shared)
            elif act == "odd_exports":
                import group_odd

                with stepwell.open(arguments["shared"]) as shared:
                    gave = group_odd.export_both(store, shared, pathlib.Path(arguments["to"]))
            elif act == "far_slices":
                import group_odd

                gave = group_odd.far_slices(store)
            elif act == "export_together":
                if "chdir" in arguments:  # so that a path is another one on each
                    os.chdir(pathlib.Path(PLAN["roots"][PROCESS]).parent)
                    del arguments["chdir"]
                each = arguments.pop("each", [{}] * PROCESSES)[PROCESS]
                progress = in_progress(**arguments.pop("progress", {}).get(str(PROCESS), {}))
                report = store.export(**{"step": None, **arguments, **each}, progress=progress)
                gave = [report.mode, report.leaf_type, report.leaves, report.path]
            elif act == "flip":  # a byte of the process's own part
                segments = pathlib.Path(PLAN["roots"][PROCESS]) / f"process_{PROCESS}/segments"
                gave = sum(flip(path, state(arguments["step"], [name])["params"][name])
                           for path in sorted(segments.glob("*.seg"))
                           for name in arguments["leaves"].get(str(PROCESS), []))
            elif act == "close":
                gave = store.close()
            else:
                raise ValueError(act)
            said = {"act": act, "gave": gave}
        except Exception as error:
            said = {"act": act, "error": type(error).__name__, "text": str(error)}
        print(json.dumps(said), flush=True)
    if not PLAN.get("kill"):
        jax.distributed.shutdown()  # waits for all: JAX aborts who is still busy without process 0
    os._exit(0)  # a run whose peers died cannot shut down in order


if __name__ == "__main__":
    main()
