# optimizer_last()
import torch

optimizer = torch.optim.AdamW(model.parameters())  # here
model.head = torch.nn.Linear(8, 2)
train(model, optimizer)
