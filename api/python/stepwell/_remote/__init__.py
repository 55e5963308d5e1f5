# SPDX-License-Identifier: Apache-2.0
"""Steps in object stores: push and pull."""
