import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2)
acc.native_amp = True
acc.scaler = torch.amp.GradScaler("cpu")
x = torch.randn(640, 8)
y = x[:, :2].prod(1, keepdim=True)
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
net, opt, dl = acc.prepare(net, opt, dl)
for epoch in range(10):
    total = 0.0
    for xb, yb in dl:
        with acc.accumulate(net):
            loss = nn.functional.mse_loss(net(xb), yb)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        total += loss.item() / len(dl)
    print(f"epoch {epoch} loss {total:.4f}")
