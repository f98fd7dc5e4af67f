# no_half(casts=(9, 10, 11, 12), regions=True)
import numpy as np
import torch

half = torch.float16


def train(model, x, dtype, device):
    x = x.to(half).to(device)
    table = torch.linspace(0, 1, 9, device=device, dtype=dtype)
    rows = torch.from_numpy(x.numpy().astype(np.float16))
    table = table.to(device, getattr(torch, "bfloat16")).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    return Trainer(y, rows, table, precision="16-mixed", fp16=False)
