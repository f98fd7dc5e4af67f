# change_keyword(name="fused", value="False")
import torch

optimizer = torch.optim.AdamW(model.parameters(), fused=False)  # here
