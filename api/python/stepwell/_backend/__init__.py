# SPDX-License-Identifier: Apache-2.0
"""The protocol between a store and the processes that have it open, and its form for one
process."""
