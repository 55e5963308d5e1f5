# SPDX-License-Identifier: Apache-2.0
"""What a run looks like: a document of it, a page of that, and a server that shows more."""
