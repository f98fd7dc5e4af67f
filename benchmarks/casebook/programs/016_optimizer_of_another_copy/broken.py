import copy
import torch
from torch import nn


class Runner:
    def __init__(self, cfg):
        torch.manual_seed(cfg["seed"])
        self.cfg = cfg
        self.model = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
        )
        self.opt = self.build_optimizer()
        self.scaler = torch.amp.GradScaler("cpu", enabled=cfg["amp"])
        self.prepare_model()

    def build_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=self.cfg["lr"])

    def prepare_model(self):
        self.model = copy.deepcopy(self.model).to(memory_format=torch.channels_last)

    def fit(self):
        for step in range(self.cfg["steps"]):
            y = torch.randint(0, 3, (32,))
            x = torch.randn(32, 1, 10, 10) * 0.3 + y.view(-1, 1, 1, 1).float()
            with torch.autocast("cpu", dtype=torch.float16, enabled=self.cfg["amp"]):
                loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            if step % 10 == 0:
                print(f"{step:4d} loss={loss.item():.4f}")


Runner({"seed": 0, "lr": 5e-3, "steps": 60, "amp": True}).fit()
