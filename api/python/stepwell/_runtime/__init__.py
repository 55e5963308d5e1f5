# SPDX-License-Identifier: Apache-2.0
"""The ground of every module: threads, fork, interpreter exit, arguments, statistics."""
