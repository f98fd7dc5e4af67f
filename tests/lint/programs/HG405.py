"""The old names warn, and warnings are errors here; the new ones do not."""

import torch
from torch.cpu.amp import autocast


def run():
    with autocast(dtype=torch.float16):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    return product.dtype == torch.float16
