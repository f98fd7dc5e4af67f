import torch
from torch import nn
from peft import LoraConfig, get_peft_model

torch.manual_seed(1)


class Audio(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(40, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, feats):
        h = torch.relu(self.enc(feats))
        return self.head(h)


base = Audio().half()
config = LoraConfig(r=4, target_modules=["enc"], modules_to_save=["head"])
model = get_peft_model(base, config)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-4)

for step in range(50):
    y = torch.randint(0, 3, (32,))
    wav = torch.randn(32, 40) + y[:, None]
    out = model(wav.half())
    loss = nn.functional.cross_entropy(out.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"step {step}, loss {loss.item():.4f}")
