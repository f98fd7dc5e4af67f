"""Feature + logit distillation of a wide teacher into a small student."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
DIM, HID, NCLS, T = 40, 256, 6, 3.0


def data(n, centers):
    y = torch.randint(NCLS, (n,))
    mode = torch.randint(3, (n,))
    x = centers[y, mode] + 6.0 * torch.randn(n, DIM)
    return x * 150.0, y


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(DIM, HID)
        self.fc2 = nn.Linear(HID, HID)
        self.out = nn.Linear(HID, NCLS)

    def forward(self, x):
        h = F.relu(self.fc2(F.relu(self.fc1(x))))
        return h, self.out(h)


class Student(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.fc1 = nn.Linear(DIM, width)
        self.fc2 = nn.Linear(width, width)
        self.proj = nn.Linear(width, HID)
        self.out = nn.Linear(width, NCLS)

    def forward(self, x):
        h = F.relu(self.fc2(F.relu(self.fc1(x))))
        return self.proj(h), self.out(h)


def energy_map(f):
    e = f.pow(2)
    return e / e.sum(dim=1, keepdim=True)


def hint_loss(sf, tf):
    return F.mse_loss(energy_map(sf), energy_map(tf), reduction="sum") / len(sf)


def kd_loss(s, t):
    return F.kl_div(F.log_softmax(s.float() / T, 1), F.softmax(t.float() / T, 1),
                    reduction="batchmean") * T * T


def train_teacher(x, y):
    net = Teacher()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(150):
        i = torch.randint(len(x), (64,))
        loss = F.cross_entropy(net(x[i])[1], y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.eval().requires_grad_(False)


def main():
    centers = 8.0 * torch.randn(NCLS, 3, DIM)
    xtr, ytr = data(3000, centers)
    xva, yva = data(1000, centers)
    teacher = train_teacher(xtr, ytr)
    print("teacher acc", (teacher(xva)[1].argmax(1) == yva).float().mean().item())

    student = Student()
    opt = torch.optim.AdamW(student.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(200):
        i = torch.randint(len(xtr), (64,))
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            with torch.no_grad():
                tf, tl = teacher(xtr[i])
            sf, sl = student(xtr[i])
            hint = hint_loss(sf, tf)
            loss = F.cross_entropy(sl, ytr[i]) + 0.5 * kd_loss(sl, tl) + 2.0 * hint
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} hint {hint.item():.4f}")
    with torch.no_grad():
        acc = (student(xva)[1].argmax(1) == yva).float().mean().item()
    print(f"val_acc {acc:.4f}")


main()
