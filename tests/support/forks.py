"""Processes of their own, forked from one that has imported torch and started no threads.

Importing torch again takes seconds in each process. And a process that has run other tests cannot be forked
itself: a backward pass in a copy of it fails.
"""

from __future__ import annotations

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
# The first process starts the server, so all that any of them needs is imported there.
FORKED.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "halfguard.guard.guard",
        "halfguard.investigation.one_pass",
    ]
)
