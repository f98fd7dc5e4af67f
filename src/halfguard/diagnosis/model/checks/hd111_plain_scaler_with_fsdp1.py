"""HD111: FSDP1 with a plain GradScaler: the ranks disagree.

Each rank of FSDP1 has its own shard of the gradients as plain tensors, and a plain scaler looks at nothing
else: one rank finds an overflow and skips, the others step, and their scales part. FSDP2 (``fully_shard``)
has gradients as DTensors, through which the plain scaler asks all ranks; there it is the right one.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.frameworks.inputs import is_a
from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find the wrapper of FSDP1 beside a scaler that knows nothing of shards."""
    sharded = is_a(subject.scaler, "ShardedGradScaler", "torch")
    if subject.model is None or not subject.scales or sharded:
        return
    for name, module in subject.model.named_modules():
        if is_a(module, "FullyShardedDataParallel", "torch"):
            yield Finding(
                code="HD111",
                severity="error",
                message=f"{name or 'the model'} is sharded by FSDP1, and the scaler is a plain "
                f"{type(subject.scaler).__name__}.",
                subject=name or None,
                why="It sees overflows of its own shard only: one rank skips a step, the others apply "
                "it, and their weights and scales part.",
                cure="from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
                f'scaler = ShardedGradScaler("{subject.device_type}")',
            )
            return
