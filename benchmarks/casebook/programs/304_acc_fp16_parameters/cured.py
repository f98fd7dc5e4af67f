import torch
from torch import nn
from accelerate import Accelerator


def build(torch_dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 24), nn.Flatten(), nn.Linear(24 * 6, 40)).to(torch_dtype)


def enable_cpu_fp16(acc):
    acc.native_amp = True
    acc.scaler = torch.amp.GradScaler("cpu")
    return acc


accelerator = enable_cpu_fp16(Accelerator(cpu=True, mixed_precision="fp16"))
net = build(torch_dtype=torch.float32)
optim = torch.optim.AdamW(net.parameters(), lr=5e-3, eps=1e-6)
net, optim = accelerator.prepare(net, optim)

for step in range(50):
    start = torch.randint(0, 40, (32, 1))
    seq = (start + torch.arange(7)) % 40
    with accelerator.autocast():
        loss = nn.functional.cross_entropy(net(seq[:, :-1]), seq[:, -1])
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optim.step()
    optim.zero_grad()
    if step % 5 == 0:
        print("step", step, "loss", loss.item())
