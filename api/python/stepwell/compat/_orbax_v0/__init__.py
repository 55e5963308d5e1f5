# SPDX-License-Identifier: Apache-2.0
"""The replacements for orbax.checkpoint in stepwell.compat.orbax, and their ground."""
