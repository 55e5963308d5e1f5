# SPDX-License-Identifier: Apache-2.0
"""Pytrees to rows of leaves and back: containers, dtypes, shardings, chunk shapes, paths."""
