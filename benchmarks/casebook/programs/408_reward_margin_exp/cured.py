import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2Model


class Reward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2)
        self.trunk = GPT2Model(cfg)
        self.value = torch.nn.Linear(32, 1)
        torch.nn.init.normal_(self.value.weight, std=1.5)

    def forward(self, ids):
        return self.value(self.trunk(ids).last_hidden_state[:, -1]).squeeze(-1)


torch.manual_seed(3)
rm = get_peft_model(Reward(), LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc", "value"]))
opt = torch.optim.AdamW([p for p in rm.parameters() if p.requires_grad], lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for it in range(60):
    good = torch.randint(20, 40, (64, 8))
    bad = torch.randint(0, 20, (64, 8))
    with torch.autocast("cpu", dtype=torch.float16):
        chosen, rejected = rm(good), rm(bad)
        loss = -F.logsigmoid(chosen - rejected).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 6 == 0:
        acc = (chosen > rejected).float().mean().item()
        print(f"iter {it} loss {loss.item():.4f} acc {acc:.2f}")
