import argparse

import torch
from encoder import Encoder
from losses import alignment, nt_xent


def augment(x, p=0.5):
    keep = (torch.rand_like(x) > p).to(x.dtype)
    return x * keep + 0.05 * torch.randn_like(x) * keep


def batches(n_steps, bs):
    centers = torch.randn(20, 32)
    for step in range(n_steps):
        c = torch.randint(0, 20, (bs,))
        x = centers[c] + 0.3 * torch.randn(bs, 32)
        yield step, x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--bs", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(5)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step, x in batches(args.steps, args.bs):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            z1, z2 = model(augment(x, 0.9)), model(augment(x, 0.5))
            loss = nt_xent(z1, z2)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step:4d} loss {loss.item():.4f} align {alignment(z1, z2).item():.4f} "
                  f"scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
