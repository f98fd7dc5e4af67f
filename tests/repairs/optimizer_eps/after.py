# optimizer_eps(optimizer="AdamW", eps="1e-4")
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)  # here
