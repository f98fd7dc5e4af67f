import torch
from peft import LoraConfig, get_peft_model
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 64, bias=False)
        nn.init.constant_(self.proj.weight, 6.0)

    def forward(self, x):
        return self.proj(x)


net = Net()
x = torch.randn(512, 64)
x = x - x.mean(1, keepdim=True)
w = torch.randn(64, 2) @ torch.randn(2, 64) * 5e-4
target = net(x).detach() + x @ w
norm = (x @ w).pow(2).mean()

model = get_peft_model(net, LoraConfig(r=2, lora_alpha=2, target_modules=["proj"]))
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
for step in range(300):
    delta = model(x) - target
    loss = delta.pow(2).mean() / norm
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

merged = model.merge_and_unload()
with torch.no_grad():
    out = merged.float()(x)
    print(f"merged loss {((out - target).pow(2).mean() / norm).item():.4f}")
