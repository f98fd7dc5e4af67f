# skip_bad_batch()
import torch

for x in loader:
    loss = model(x)
    loss = torch.nan_to_num(loss)  # here
    loss.backward()
