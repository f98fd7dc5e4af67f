# skip_bad_batch()
import torch

for x in data:
    loss = f(x)
    opt.zero_grad()
    scaler.scale(loss).backward()  # here
