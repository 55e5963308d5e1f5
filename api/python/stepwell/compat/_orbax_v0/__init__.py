# SPDX-License-Identifier: Apache-2.0
"""What stepwell.compat.orbax replaces of orbax.checkpoint, and what that stands on."""
