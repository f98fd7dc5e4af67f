import torch
from accelerate import Accelerator
from torch import nn

N_ITEMS = 6000


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS + 1, 8, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, rows):
        ids, dense = rows[:, 0].long(), rows[:, 1:]
        return self.mlp(torch.cat([self.item(ids), dense.float()], 1)).squeeze(1)


torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp, acc.scaler = True, torch.amp.GradScaler("cpu")
taste = (torch.rand(N_ITEMS + 1) > 0.5).float()
ids = torch.arange(1, N_ITEMS + 1).repeat(4)
rows = torch.cat([ids[:, None].float(), torch.randn(len(ids), 4)], 1)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(rows, taste[ids]), batch_size=256, shuffle=True,
    collate_fn=lambda b: (torch.stack([r for r, _ in b]), torch.stack([t for _, t in b])),
)
net = Ranker()
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
net, opt, loader = acc.prepare(net, opt, loader)
for epoch in range(5):
    total = 0.0
    for batch, target in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(net(batch), target)
        opt.zero_grad()
        acc.backward(loss)
        opt.step()
        total += loss.item() / len(loader)
    print(f"epoch {epoch} loss {total:.4f}")
