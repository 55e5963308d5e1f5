# SPDX-License-Identifier: Apache-2.0
"""What every module stands on: threads, fork, interpreter exit, arguments, statistics."""
