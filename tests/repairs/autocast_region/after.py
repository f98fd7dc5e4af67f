# autocast_region(name="dtype", value="torch.bfloat16")
import torch

with torch.autocast("cuda", dtype=torch.bfloat16):  # here
    loss = model(x)
