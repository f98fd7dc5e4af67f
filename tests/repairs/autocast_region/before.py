# autocast_region(name="dtype", value="torch.bfloat16")
import torch

with torch.autocast("cuda", dtype=torch.float16):  # here
    loss = model(x)
