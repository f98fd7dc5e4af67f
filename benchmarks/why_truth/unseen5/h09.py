"""Line OCR: small transformer encoder with padded lines, CTC loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
COL, CHARS, D = 10, 6, 48


def lines(n, glyphs):
    x, lens, targets, tlens = torch.zeros(n, 24, COL), [], [], []
    for i in range(n):
        k = int(torch.randint(3, 7, (1,)))
        t = torch.randint(1, CHARS + 1, (k,))
        cols = glyphs[t - 1].reshape(-1, COL)
        x[i, :len(cols)] = cols + 0.1 * torch.randn_like(cols)
        lens.append(len(cols))
        targets.append(F.pad(t, (0, 6 - k)))
        tlens.append(k)
    return x, torch.tensor(lens), torch.stack(targets), torch.tensor(tlens)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.o = nn.Linear(D, D)

    def forward(self, x, pad):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / (D // 2) ** 0.5
        att = att.masked_fill(pad[:, None, None], torch.finfo(att.dtype).min)
        h = (att.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.o(h)


class OCR(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(COL, D, 5, padding=2)
        self.att, self.n1, self.n2 = Attention(), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 96), nn.GELU(), nn.Linear(96, D))
        self.out = nn.Linear(D, CHARS + 1)

    def forward(self, x, lens):
        pad = torch.arange(x.size(1))[None] >= lens[:, None]
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        h = h + self.att(self.n1(h), pad)
        return self.out(h + self.ff(self.n2(h)))


def main():
    glyphs = torch.randn(CHARS, 4, COL)
    x, lens, tgt, tl = lines(1200, glyphs)
    vx, vl, vt, vtl = lines(200, glyphs)
    net = OCR()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(80):
        i = torch.randint(len(x), (24,))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(x[i], lens[i])
        logp = logits.float().log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(logp, tgt[i], lens[i], tl[i], zero_infinity=True)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} ctc {loss.item():.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        pred = net(vx, vl).argmax(-1)
    ok = 0
    for p, n, t, k in zip(pred, vl, vt, vtl):
        seq = torch.unique_consecutive(p[:n])
        ok += int(seq[seq > 0].tolist() == torch.unique_consecutive(t[:k]).tolist()
                  or seq[seq > 0].tolist() == t[:k].tolist())
    print(f"val_acc {ok / len(vx):.4f}")


if __name__ == "__main__":
    main()
