# SPDX-License-Identifier: Apache-2.0
"""What a store asks of the processes that have it open: the protocol, and that of one process."""
