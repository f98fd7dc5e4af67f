"""Processes of their own, forked from one that has imported torch and started no threads.

A process that has run other tests cannot be forked: a backward pass in a copy of it fails.
"""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "halfguard.investigation.one_pass"])
