# float_positions()
import torch

t = torch.arange(n, device=x.device).float()  # here
