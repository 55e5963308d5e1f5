# SPDX-License-Identifier: Apache-2.0
"""Stores of many processes: coordination, collectives, shard ownership, local disks."""
