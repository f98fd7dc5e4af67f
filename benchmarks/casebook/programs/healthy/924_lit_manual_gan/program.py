import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.d = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def training_step(self, real, i):
        og, od = self.optimizers()
        one, zero = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = self.g(torch.randn(len(real), 4))
        ld = bce(self.d(real), one) + bce(self.d(fake.detach()), zero)
        od.zero_grad()
        self.manual_backward(ld)
        od.step()
        lg = bce(self.d(fake), one)
        og.zero_grad()
        self.manual_backward(lg)
        og.step()
        if i % 40 == 39:
            d = (fake.detach().float().mean(0) - 1.5).norm().item()
            print(f"loss_d {ld.item():.3f} loss_g {lg.item():.3f} distance {d:.3f}")

    def configure_optimizers(self):
        kw = dict(lr=2e-3, betas=(0.5, 0.9))
        return torch.optim.Adam(self.g.parameters(), **kw), torch.optim.Adam(self.d.parameters(), **kw)


L.seed_everything(1)
data = torch.randn(64 * 200, 2) * 0.5 + 1.5
L.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))],
).fit(Gan(), torch.utils.data.DataLoader(data, batch_size=64))
