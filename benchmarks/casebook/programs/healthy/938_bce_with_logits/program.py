import torch
from torch import nn

torch.manual_seed(5)
clf = nn.Linear(10, 1)
opt = torch.optim.SGD(clf.parameters(), lr=2.0)
scaler = torch.amp.GradScaler("cpu")
true = torch.randn(10, 1)
for it in range(50):
    x = torch.randn(128, 10) * 5
    y = (x @ true > 0).float()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.binary_cross_entropy_with_logits(clf(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 5 == 0:
        print(f"iter {it}: loss {loss.item():.5f}")
