# SPDX-License-Identifier: Apache-2.0
"""Which files of other libraries' tests are run, and how."""

from __future__ import annotations

import dataclasses

_ORBAX_TESTS = r"^orbax\.checkpoint\..*(_test|test_utils|_test_base|_utils_test)$|" \
               r"^orbax\.checkpoint\..*_src\.testing\.(?!benchmarks)"
_V1 = "experimental.v1._src"


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tests of one library.

    root: the folder of the checkout that has its top module. package: what the names of `files`
    are below. twins: what is swapped. swapped: modules that get the swapped ones, as a pattern.
    overlay: the installed package is used, with what only the checkout has beside it; else the
    checkout's own. paths: more folders to import from. distributed: files that run under
    jax.distributed, in one process. fixtures: a conftest.py of the checkout. devices: of the CPU.
    """

    root: str
    package: str
    files: tuple[str, ...]
    twins: tuple[str, ...]
    swapped: str
    overlay: bool = False
    paths: tuple[str, ...] = ()
    distributed: tuple[str, ...] = ()
    fixtures: str = ""
    devices: int = 8


SUITES = {
    "orbax": Suite(
        "checkpoint", "orbax.checkpoint",
        ("checkpoint_manager_test", "checkpoint_manager_options_test",
         "_src.checkpointers.checkpointer_test", "_src.checkpointers.async_checkpointer_test",
         "checkpoint_utils_test", "transform_utils_test", "checkpoint_args_test",
         "_src.checkpoint_managers.preservation_policy_test", "_src.composite_test",
         "single_host_test",
         "_src.handlers.array_checkpoint_handler_test",
         "_src.handlers.composite_checkpoint_handler_test",
         "_src.handlers.handler_registration_test", "_src.handlers.handler_type_registry_test",
         "_src.handlers.json_checkpoint_handler_test",
         "_src.handlers.pytree_checkpoint_handler_test", "_src.handlers.pytree_metadata_test",
         "_src.handlers.random_key_checkpoint_handler_test",
         "_src.handlers.standard_checkpoint_handler_test",
         "_src.metadata.checkpoint_test", "_src.metadata.tree_test", "_src.path.step_test",
         "_src.serialization.type_handlers_test", "_src.tree.utils_test"),
        ("orbax.checkpoint", "orbax.checkpoint.experimental.v1"), _ORBAX_TESTS, overlay=True,
        distributed=("_src.handlers.array_checkpoint_handler_test",
                     "_src.handlers.pytree_checkpoint_handler_test",
                     "_src.handlers.standard_checkpoint_handler_test",
                     "_src.serialization.type_handlers_test",
                     "checkpoint_manager_test", "_src.checkpointers.async_checkpointer_test",
                     "_src.checkpointers.checkpointer_test")),
    "orbax_v1": Suite(
        "checkpoint", "orbax.checkpoint.experimental.v1",
        ("_src.testing.save_load_test", "_src.training.checkpointer_test_base",
         "_src.partial.saving_test", "_src.metadata.loading_test",
         "_src.testing.compatibility.load_compatibility_test",
         "_src.testing.compatibility.load_checkpointables_compatibility_test",
         "_src.testing.compatibility.metadata_compatibility_test",
         "_src.testing.compatibility.checkpointables_metadata_compatibility_test",
         "_src.testing.v1_checkpointer_compatibility_test",
         "_src.testing.v1_checkpointer_compatibility_tmp_test",
         "_src.handlers.registration_test", "_src.handlers.json_handler_test",
         "_src.handlers.types_test", "_src.context.context_test", "_src.context.options_test",
         "_src.loading.validation_test", "_src.saving.validation_test",
         "_src.tree.types_validation_test", "_src.testing.import_test",
         "_src.testing.import_symbols_test", "deprecations_test"),
        ("orbax.checkpoint", "orbax.checkpoint.experimental.v1"), _ORBAX_TESTS, overlay=True,
        distributed=("_src.testing.save_load_test",)),
    "flax": Suite("tests", "", ("checkpoints_test",), ("flax.training.checkpoints",),
                  "^checkpoints_test$"),
    "equinox": Suite("tests", "", ("test_serialisation",), ("equinox",),
                     "^test_serialisation$", fixtures="tests/conftest.py"),
    "brax": Suite(".", "brax.training.agents", ("ppo.checkpoint_test", "sac.checkpoint_test"),
                  ("orbax.checkpoint",), r"^brax\."),
    "tunix": Suite(".", "tests.sft", ("checkpoint_manager_test", "checkpoint_options_test"),
                   ("orbax.checkpoint", "orbax.checkpoint.experimental.v1"),
                   r"^tunix\.|^tests\."),
    "simply": Suite(".", "simply.utils", ("checkpoint_lib_test",),
                    ("orbax.checkpoint", "orbax.checkpoint.experimental.v1"), r"^simply\.",
                    devices=1),
    "maxtext": Suite(
        ".", "tests.unit",
        ("checkpointing_test", "checkpoint_context_test", "checkpointing_nnx_load_test",
         "checkpointing_nnx_missing_param_test", "checkpointing_nnx_roundtrip_test",
         "train_state_nnx_checkpoint_test"),
        ("orbax.checkpoint", "orbax.checkpoint.experimental.v1"), r"^maxtext\.|^tests\.",
        paths=("src",), devices=1),
}
