# smallest_number(dtype="float16")
import torch

scores = scores.masked_fill(mask, -1e9)  # here
