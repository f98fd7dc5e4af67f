"""Physics-informed net for the temperature (in kelvin) of a heated rod, with sensor data and an ambient-loss term."""
import torch
from torch import nn

AMBIENT = 293.15


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class RodNet(nn.Module):
    """The net predicts the deviation from the base temperature."""

    def __init__(self, width=48, base=AMBIENT):
        super().__init__()
        self.base = base
        self.body = nn.Sequential(
            nn.Linear(2, width), Sine(),
            nn.Linear(width, width), Sine(),
            nn.Linear(width, 1),
        )
        self.log_k = nn.Parameter(torch.zeros(()))

    def forward(self, xt):
        dev = self.body(xt)
        return self.base + dev  # guilty


def sensors(x, t):
    return AMBIENT + 0.4 * torch.exp(-2.0 * t) * torch.sin(3.1416 * x) + 0.1 * x


def loss_fn(model, batch):
    # data term at the sensors
    pred = model(batch["sensor_xt"])
    data = (pred.float() - batch["sensor_T"]).pow(2).mean()

    # Newton cooling at the surface: heat flux must balance the measured heater power
    surf = model(batch["surface_xt"])
    flux = torch.exp(model.log_k) * (surf.float() - AMBIENT)
    cooling = (flux - batch["power"]).pow(2).mean()

    # initial condition
    start = model(batch["initial_xt"])
    initial = (start.float() - batch["initial_T"]).pow(2).mean()

    return 10.0 * data + cooling + 10.0 * initial


def make():
    torch.manual_seed(3)
    model = RodNet()
    n = 96
    xt = torch.rand(n, 2)
    surface = torch.rand(n // 2, 2)
    initial = torch.stack([torch.linspace(0, 1, 40), torch.zeros(40)], dim=1)
    batch = {
        "sensor_xt": xt,
        "sensor_T": sensors(xt[:, :1], xt[:, 1:]),
        "surface_xt": surface,
        "power": 0.3 + 0.1 * torch.rand(n // 2, 1),
        "initial_xt": initial,
        "initial_T": sensors(initial[:, :1], initial[:, 1:]),
    }
    return model, loss_fn, batch
