import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

ACCUM = 4
CLIP = 1.0
torch.manual_seed(0)
model = nn.GRUCell(8, 32)
readout = nn.Linear(32, 1)
params = list(model.parameters()) + list(readout.parameters())
optimizer = torch.optim.Adam(params, lr=4e-3)
scaler = torch.amp.GradScaler("cpu")


def forward(seq):
    h = seq.new_zeros(seq.size(0), 32)
    for t in range(seq.size(1)):
        h = model(seq[:, t], h)
    return readout(h).squeeze(-1)


optimizer.zero_grad()
for i in range(1, 161):
    seq = torch.rand(16, 6, 8)
    y = seq.mean((1, 2))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(forward(seq), y) / ACCUM
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(params, CLIP)
    if i % ACCUM == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if i % 20 == 0:
            print(f"micro step {i} loss {loss.item() * ACCUM:.5f}")
