"""Item recommendation by matrix factorisation, trained in two sessions with a compact checkpoint in between."""
import argparse
import io

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--users", type=int, default=400)
ap.add_argument("--items", type=int, default=300)
ap.add_argument("--dim", type=int, default=16)
ap.add_argument("--steps", type=int, default=90, help="steps per session")
ap.add_argument("--lr", type=float, default=3e-2)
args = ap.parse_args()

gen = torch.Generator().manual_seed(9)
true_u = torch.randn(args.users, 4, generator=gen)
true_i = torch.randn(args.items, 4, generator=gen)


def ratings(n):
    u = torch.randint(0, args.users, (n,), generator=gen)
    i = torch.randint(0, args.items, (n,), generator=gen)
    return u, i, (true_u[u] * true_i[i]).sum(-1) * 0.5


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(args.users, args.dim)
        self.item = nn.Embedding(args.items, args.dim)
        self.mix = nn.Linear(args.dim, args.dim, bias=False)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        nn.init.eye_(self.mix.weight)

    def forward(self, u, i):
        return (self.mix(self.user(u)) * self.item(i)).sum(-1)


def new_session():
    torch.manual_seed(1)
    model = Factors()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return model, optimizer, scaler


def compact(obj):
    """Floating tensors go to disk in half precision, everything else as it is."""
    if torch.is_tensor(obj):
        return obj.half() if obj.is_floating_point() and obj.dim() > 0 else obj
    if isinstance(obj, dict):
        return {k: compact(v) for k, v in obj.items()}
    if isinstance(obj, list):
        return [compact(v) for v in obj]
    return obj


def save(model, optimizer, scaler):
    buffer = io.BytesIO()
    state = {"model": compact(model.state_dict()), "optimizer": compact(optimizer.state_dict()), "scaler": scaler.state_dict()}
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


def run(model, optimizer, scaler, first):
    for step in range(first, first + args.steps):
        u, i, r = ratings(256)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(u, i).float(), r)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 8 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}")


model, optimizer, scaler = new_session()
run(model, optimizer, scaler, 0)
checkpoint = save(model, optimizer, scaler)

model, optimizer, scaler = new_session()
state = torch.load(checkpoint)
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
scaler.load_state_dict(state["scaler"])
print("resumed")
run(model, optimizer, scaler, args.steps)
