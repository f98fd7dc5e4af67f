"""GRU forecaster on noisy sines, FP16 autocast."""
import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.inp = nn.Linear(1, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h = torch.zeros(x.shape[0], self.cell.hidden_size)
        for t in range(x.shape[1]):
            h = self.cell(torch.tanh(self.inp(x[:, t])), h)
        return self.out(h)


class Series:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        for _ in range(40):
            phase = torch.rand(32, 1, generator=self.gen) * 6.28
            freq = 0.2 + 0.3 * torch.rand(32, 1, generator=self.gen)
            t = torch.arange(17)[None].float()
            s = torch.sin(freq * t + phase) + 0.02 * torch.randn(32, 17, generator=self.gen)
            yield s[:, :16, None], s[:, 16:]


class Engine:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13)
        self.criterion = nn.MSELoss()

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.model(x)
        loss = self.criterion(pred.float(), y)
        scaled = self.scaler.scale(loss)
        loss.backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), scaled.item()


def main():
    torch.manual_seed(0)
    engine = Engine(Forecaster(), lr=0.05)
    for epoch in range(4):
        history = [engine.step(x, y)[0] for x, y in Series(epoch)]
        print(f"epoch {epoch} train mse {sum(history) / len(history):.4f}")


if __name__ == "__main__":
    main()
