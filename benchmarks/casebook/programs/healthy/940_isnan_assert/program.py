import torch
from torch import nn

torch.manual_seed(0)
rnn, out = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 4)
opt = torch.optim.Adam([*rnn.parameters(), *out.parameters()], lr=5e-3)
for step in range(30):
    seq = torch.randn(16, 9, 4).cumsum(1) * 0.3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, _ = rnn(seq[:, :-1])
        loss = nn.functional.mse_loss(out(h).float(), seq[:, 1:])
    if torch.isnan(loss):
        raise RuntimeError(f"bad loss at {step}")
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([*rnn.parameters(), *out.parameters()], 1.0)
    opt.step()
    print(f"step {step} loss {loss.item():.4f}")
