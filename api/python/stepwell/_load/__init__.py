# SPDX-License-Identifier: Apache-2.0
"""Loading: into the structure of `like` or plain containers, onto devices."""
