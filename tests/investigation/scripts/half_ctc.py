import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 5)
criterion = nn.CTCLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x, text = torch.randn(12, 4, 8), torch.randint(1, 5, (4, 3))
    log_probabilities = model(x).log_softmax(-1).half()
    loss = criterion(log_probabilities, text, torch.full((4,), 12), torch.full((4,), 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
