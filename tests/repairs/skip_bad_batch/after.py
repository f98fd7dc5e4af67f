# skip_bad_batch()
import torch

for x in loader:
    loss = model(x)
    if not torch.isfinite(loss):
        continue  # here
    loss.backward()
