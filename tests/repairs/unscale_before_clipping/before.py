# unscale_before_clipping()
import torch

for x in loader:
    scaler.scale(model(x)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
    scaler.step(optimizer)
    scaler.update()
