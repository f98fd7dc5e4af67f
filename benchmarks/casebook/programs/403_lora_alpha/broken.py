import torch
from peft import LoraConfig, get_peft_model
from torch import nn

LORA = dict(r=4, lora_alpha=32768, target_modules=["up", "down"])


class MLP(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(x + self.down(torch.relu(self.up(x))))


torch.manual_seed(0)
net = get_peft_model(MLP(), LoraConfig(**LORA, init_lora_weights=False))
params = [p for p in net.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params, lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
x = torch.randn(512, 32)
y = x[:, :2].prod(1, keepdim=True) + x[:, 3:4]
for epoch in range(6):
    for i in range(0, 512, 32):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x[i : i + 32]), y[i : i + 32])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(f"epoch {epoch}: loss={loss.item():.4f} scale={scaler.get_scale()}")
