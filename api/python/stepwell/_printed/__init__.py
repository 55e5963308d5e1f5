# SPDX-License-Identifier: Apache-2.0
"""Stored elements as text and JSON; the slices that name them."""
