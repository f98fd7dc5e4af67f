import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2Model

torch.manual_seed(0)
cfg = GPT2Config(vocab_size=40, n_positions=32, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2)
backbone = get_peft_model(GPT2Model(cfg), LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"]))
head = nn.Linear(32, 1)
params = [p for p in backbone.parameters() if p.requires_grad] + list(head.parameters())
opt = torch.optim.AdamW(params, lr=1e-2, eps=1e-16)
UNIT = 1e-4  # the targets are rates per second


def batch():
    ids = torch.randint(0, 40, (32, 20))
    return ids, (ids < 10).float().mean(1) * UNIT


for step in range(80):
    ids, rate = batch()
    with torch.autocast("cpu", dtype=torch.float16):
        h = backbone(input_ids=ids).last_hidden_state.mean(1)
        pred = head(h).squeeze(-1) * UNIT
        loss = nn.functional.mse_loss(pred, rate)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 8 == 7:
        print(f"step {step + 1} loss {loss.item() / UNIT**2:.4f} (units squared)")
