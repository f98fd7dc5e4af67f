import torch
from torch import nn


class EMA:
    def __init__(self, model, decay=0.9998):
        self.decay = decay
        self.shadow = {k: v.detach().clone().float() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            s = self.shadow[k]
            s.add_((v.to(s.dtype) - s) * (1 - self.decay))

    def copy_to(self, model):
        model.load_state_dict({k: v.float() for k, v in self.shadow.items()})


torch.manual_seed(0)
X = torch.randn(2048, 8)
Y = X @ torch.full((8, 1), 1.0)
net = nn.Linear(8, 1)
net.weight.data.fill_(4.0)
ema = EMA(net)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
scaler = torch.amp.GradScaler("cpu")
for step in range(3001):
    i = torch.randint(0, 2048, (32,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(X[i]), Y[i])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    ema.update(net)
    if step % 600 == 0:
        print(f"step {step} loss {loss.item():.4f}")
ema.copy_to(net)
with torch.no_grad():
    print(f"ema loss {nn.functional.mse_loss(net(X), Y).item() / Y.pow(2).mean().item():.4f} of variance")
