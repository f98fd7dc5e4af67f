"""HD111: FSDP1 with a plain GradScaler: the ranks disagree.

With FSDP1 each rank has its shard of the gradients as plain tensors, and a plain scaler checks only those:
one rank finds an overflow and skips the step, the others apply it, and their scales diverge. With FSDP2
(``fully_shard``) gradients are DTensors, so the plain scaler checks all ranks and is correct.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.frameworks.inputs import is_a
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find an FSDP1 wrapper in a setup whose scaler is not a ShardedGradScaler."""
    sharded = is_a(setup.scaler, "ShardedGradScaler", "torch")
    if setup.model is None or not setup.scaler_enabled or sharded:
        return
    for name, module in setup.model.named_modules():
        if is_a(module, "FullyShardedDataParallel", "torch"):
            yield Finding(
                code="HD111",
                severity="error",
                message=f"{name or 'the model'} is sharded by FSDP1, and the scaler is a plain "
                f"{type(setup.scaler).__name__}.",
                subject=name or None,
                why="It finds overflows in its own shard only: one rank skips a step, the others apply "
                "it, and their weights and scales diverge.",
                cure="from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
                f'scaler = ShardedGradScaler("{setup.device_type}")',
            )
            return
