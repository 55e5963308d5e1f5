# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and files of other libraries: export, import, views."""
