# SPDX-License-Identifier: Apache-2.0
"""Parts of stepwell.compat.orbax_v1."""
