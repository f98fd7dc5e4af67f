"""A stock loop with Accelerate, which docs/how-to/accelerate.md guards."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor, nn


def compute_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


torch.manual_seed(0)
data = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(8)]
data[3][0][0] = torch.nan  # one bad sample

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

for batch in data:
    with accelerator.accumulate(model):
        loss = compute_loss(model, batch)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

finite = all(value.isfinite().all() for value in model.state_dict().values())
print(
    f"{scheduler.scheduler.last_epoch} of 4 steps, model is {'finite' if finite else 'not finite'}"
)
accelerator.end_training()
