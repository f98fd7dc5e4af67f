import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp, acc.scaler = True, torch.amp.GradScaler("cpu", init_scale=4096.0)
auto = nn.Sequential(nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 20))
probe = nn.Linear(6, 3)
opt_a = torch.optim.Adam(auto.parameters(), lr=5e-3)
opt_p = torch.optim.SGD(probe.parameters(), lr=0.2)
auto, probe, opt_a, opt_p = acc.prepare(auto, probe, opt_a, opt_p)
basis = torch.randn(3, 20)
for it in range(300):
    kind = torch.randint(0, 3, (64,))
    x = basis[kind] + 0.1 * torch.randn(64, 20)
    loss_a = nn.functional.mse_loss(auto(x), x)
    acc.backward(loss_a)
    opt_a.step()
    opt_a.zero_grad()

    with torch.no_grad():
        code = auto[1](auto[0](x))
    loss_p = nn.functional.cross_entropy(probe(code), kind)
    acc.backward(loss_p)
    opt_p.step()
    opt_p.zero_grad()
    if it % 20 == 0:
        print(f"it {it} probe {loss_p.item():.4f} loss {loss_a.item():.4f}")
