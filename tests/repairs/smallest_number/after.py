# smallest_number(dtype="float16")
import torch

scores = scores.masked_fill(mask, torch.finfo(torch.float16).min)  # here
