import torch
import torch.nn as nn
from peft import LoraConfig, get_peft_model


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(12, 48)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(torch.relu(self.inp(x)))


torch.manual_seed(0)
model = get_peft_model(Regressor(), LoraConfig(r=4, lora_alpha=8, target_modules=["inp"]))
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
for step in range(20):
    x = torch.randn(32, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fit = nn.functional.mse_loss(model(x).float(), x[:, :1])
    penalty = sum((m.weight ** 2).sum().sqrt() for n, m in model.named_modules() if n.endswith("lora_B.default"))
    loss = fit + 1e-3 * penalty
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
