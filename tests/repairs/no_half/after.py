# no_half(casts=(9, 10, 11, 12), regions=True)
import numpy as np
import torch

half = torch.float16


def train(model, x, dtype, device):
    x = x.float().to(device)
    table = torch.linspace(0, 1, 9, device=device, dtype=torch.float32)
    rows = torch.from_numpy(x.numpy().astype(np.float32))
    table = table.to(device, torch.float32).float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        y = model(x)
    return Trainer(y, rows, table, precision="32-true", fp16=False)
