# skip_bad_batch()
import torch

for x in data:
    loss = f(x)
    opt.zero_grad()
    if not torch.isfinite(loss):
        continue
    scaler.scale(loss).backward()  # here
