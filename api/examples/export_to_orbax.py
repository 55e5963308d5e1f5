# SPDX-License-Identifier: Apache-2.0
"""Hands the newest step of a store to Orbax and TensorStore, and compares what they read.

    python api/examples/export_to_orbax.py run1

Writes run1-orbax (for the v1 API) and run1-manager (the root of a v0 CheckpointManager), which must
not exist. Each reader then opens them in a process with one device and in one with 8 virtual CPU
devices; exits with 1 when one bit is different.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from typing import Any, Literal


def by_name(tree: Any) -> dict[str, Any]:
    """Leaves by path, keys as Orbax spells them."""
    import jax

    def spell(key: Any) -> str:
        return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", None))))

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {".".join(spell(key) for key in path): leaf for path, leaf in leaves}


def export(store_path: str) -> None:
    import stepwell

    with stepwell.open(store_path, mode="r") as store:
        layouts: tuple[tuple[str, Literal["v0", "v1"]], ...] = (
            (f"{store_path}-orbax", "v1"), (f"{store_path}-manager", "v0"))
        for dest, layout in layouts:
            begin = time.perf_counter()
            report = store.export(None, dest, layout=layout, unnamed_default=layout == "v0")
            milliseconds = (time.perf_counter() - begin) * 1e3
            print(f"  {report.path}: {report.leaves} leaves, {report.step_bytes / 1e6:.1f} MB, "
                  f"by {report.mode}, in {milliseconds:.0f} ms", flush=True)


def check(store_path: str) -> None:
    """In a process of its own, where JAX has been told how many devices there are."""
    warnings.simplefilter("ignore")  # that a sharding came from the file: that is what is asked for
    import jax
    import numpy as np
    import orbax.checkpoint as v0
    import tensorstore
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from orbax.checkpoint import v1

    import stepwell

    with stepwell.open(store_path, mode="r") as store:
        step = store.latest
        wanted = by_name(store.load(step))

    def compare(reader: str, tree: Any) -> None:
        # Orbax has a level "value" for each Variable of NNX.
        read = {name.removesuffix(".value"): leaf for name, leaf in by_name(tree).items()}
        if read.keys() != wanted.keys():
            sys.exit(f"{reader}: other leaves: {sorted(read.keys() ^ wanted.keys())}")
        for name, leaf in wanted.items():
            one, other = np.asarray(leaf), np.asarray(read[name])
            same = (one.dtype, one.shape) == (other.dtype, other.shape)
            if not same or one.tobytes() != other.tobytes():
                sys.exit(f"{reader}: {name} is not what was saved")
        print(f"  {jax.device_count()} device(s), {reader}: {len(read)} leaves, equal bit for bit",
              flush=True)

    path, root = f"{os.path.abspath(store_path)}-orbax", f"{os.path.abspath(store_path)}-manager"
    by_v1 = v1.load(path)
    compare("Orbax v1", by_v1)

    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("model",))

    def placed(leaf: Any) -> Any:  # split over all devices where that comes out even
        shape = np.shape(leaf)
        even = bool(shape) and shape[0] % len(devices) == 0
        spec = PartitionSpec("model") if even else PartitionSpec()
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    compare("Orbax v1 onto all devices",
            v1.load(path, jax.tree.map(placed, v1.metadata(path).metadata)))
    with v0.CheckpointManager(root) as manager:
        if manager.all_steps() != [step]:
            sys.exit(f"the manager sees the steps {manager.all_steps()}, not [{step}]")
        tree = manager.restore(step, args=v0.args.StandardRestore())
        compare("Orbax v0, CheckpointManager", tree)

    def read(name: str) -> Any:
        kvstore = {"driver": "ocdbt", "base": f"file://{path}/state/", "path": name + "/"}
        spec = {"driver": "zarr3", "kvstore": kvstore}
        return tensorstore.open(spec, read=True, open=True).result().read().result()

    compare("TensorStore, array by array", {name: read(name) for name in by_name(by_v1)})


def main() -> None:
    store_path = sys.argv[1]
    if sys.argv[2:] == ["--check"]:
        check(store_path)
        return
    export(store_path)
    for count in (1, 8):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu",
                       "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
        command = [sys.executable, __file__, store_path, "--check"]
        if subprocess.run(command, env=environment).returncode != 0:
            sys.exit("the export is not what was saved")


if __name__ == "__main__":
    main()
