# optimizer_last()
import torch

model.head = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
train(model, optimizer)
