"""House-price style tabular regression in bfloat16."""
import numpy as np
import torch
import torch.nn.functional as F

from f05_layers import build_model, build_optimizer

SEED, N_FEATURES, EPOCHS, BATCH = 5, 10, 30, 128
DTYPE = torch.bfloat16


def make_data(n, rng):
    x = rng.uniform(-1, 1, (n, N_FEATURES))
    y = (
        np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.7 * np.abs(x[:, 3])
        + 0.5 * x[:, 4] ** 2 - 0.8 * x[:, 5] + 0.05 * rng.normal(size=n)
    )
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def main():
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    x_tr, y_tr = make_data(4000, rng)
    x_va, y_va = make_data(1000, rng)
    mu, sd = y_tr.mean(), y_tr.std()

    model = build_model(N_FEATURES, DTYPE)
    opt = build_optimizer(model)
    for epoch in range(EPOCHS):
        model.train()
        tot = 0.0
        for idx in torch.randperm(len(x_tr)).split(BATCH):
            pred = model(x_tr[idx].to(DTYPE))
            loss = F.mse_loss(pred.float(), (y_tr[idx] - mu) / sd)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            tot += loss.item() * len(idx)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:3d} train_mse {tot / len(x_tr):.4f}")

    model.eval()
    with torch.no_grad():
        pred = model(x_va.to(DTYPE)).float() * sd + mu
    print(f"val_mse {F.mse_loss(pred, y_va).item():.5f}")


if __name__ == "__main__":
    main()
