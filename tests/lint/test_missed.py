"""Mistakes that were found by reading public training code and that lint once missed: each is found now.

The snippets are our own: the smallest code that makes the same mistake. Each has a counterpart that is right.
"""

from __future__ import annotations

from tests.lint.helper import codes
from tests.support.cases import each

HEAD = """\
import torch
import math
import torch.nn.functional as F
from torch import nn
import torch.distributed as dist

"""
LOOP = """
def train(model, optimizer, loader, scheduler, use_amp, epochs):
    {scaler}
    for epoch in range(epochs):
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            {body}
        {after}
"""
STEPS = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
NEW = 'scaler = torch.amp.GradScaler("cuda")'


def loop(body: str = STEPS, *, scaler: str = NEW, after: str = "pass") -> str:
    body = "\n            ".join(body.split("; "))
    return LOOP.format(scaler=scaler, body=body, after=after)


SAVE = 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")'
HELPER = f"""
def save(model, optimizer, epoch):
    {SAVE}
"""
METHODS = """
class Trainer:
    def __init__(self, model, optimizer):
        self.optimizer, self.model = optimizer, model
        self.scaler = torch.amp.GradScaler("cuda") if torch.cuda.is_available() else None

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, "last.pt")
"""
PER_EPOCH = """
def train_one_epoch(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()

def main(model, optimizer, loader):
    for epoch in range(10):
        train_one_epoch(model, optimizer, loader)
"""
GAN = """
def train(gen, disc, opt_g, opt_d, scaler, loader):
    for x in loader:
        {}
"""


def gan(*lines: str) -> str:
    return GAN.format("\n        ".join(lines))


MASK_OF_BASE = """
class Base(nn.Module):
    def __init__(self):
        self.neg = -1e9
class Attention(Base):
    def forward(self, s, mask):
        return s.masked_fill(mask, self.neg).softmax(-1)
"""

MISSED = {
    # two definitions of one file
    "mask constant in a base class": (MASK_OF_BASE, "HG101"),
    # spellings of a constant
    **{f"mask constant {text}": (f"def f(x, m):\n    return x.masked_fill(m, {text})\n", "HG101")
       for text in ("-99999", "-999999.0", "-1E9", "-10**9", "-987654")},
    # state and lifetime of the scaler
    "scaler in a conditional expression": (
        loop(scaler=f"{NEW} if use_amp else None", after=SAVE), "HG309"),
    "scaler made in another method": (METHODS, "HG309"),
    "checkpoint saved by a helper": (HELPER + loop(after="save(model, optimizer, epoch)"), "HG309"),
    "checkpoint given to a helper": (
        loop(after='save_checkpoint({"optimizer": optimizer.state_dict()}, epoch)'), "HG309"),
    "new scaler every epoch, in the loop": (
        loop(f"{STEPS}", scaler="pass").replace("for x, y", f"{NEW}\n        for x, y"), "HG210"),
    "new scaler every epoch, in a function": (PER_EPOCH, "HG210"),
    # constants
    "mask value as a default": (
        "def attend(s, m, value=-1e9):\n    return s.masked_fill(m, value).softmax(-1)\n", "HG101"),
    "mask value as an attribute": (
        ("class A(nn.Module):\n    def __init__(self):\n        self.value = -1e9\n"
         "    def forward(self, s, m):\n        return s.masked_fill(m, self.value)\n"), "HG101"),
    "a loss as an attribute": (
        ("class T:\n    def __init__(self):\n        self.criterion = nn.BCELoss()\n"
         "    def step(self, x, y):\n        with torch.autocast('cuda'):\n"
         "            return self.criterion(self.model(x), y)\n"), "HG107"),
    "a loss given to a helper": (
        ("def loss_of(p, y):\n    return F.binary_cross_entropy(p, y)\n"
         "def step(model, x, y):\n    with torch.autocast('cuda'):\n"
         "        return loss_of(model(x), y)\n"), "HG107"),
    # order of the step
    "skip in an else": (
        loop(f"if torch.isfinite(loss):; {'; '.join('    ' + s for s in STEPS.split('; '))}; "
             "else:;     print('skipped')"), "HG301"),
    "continue in an else": (
        loop(f"if torch.isfinite(loss):;     pass; else:;     continue; {STEPS}"), "HG301"),
    # scaler and optimizers
    "unscaled, with the scaler as a parameter": (
        ("def step(model, optimizer, scaler, x):\n    loss = model(x).mean()\n    loss.backward()\n"
         "    scaler.step(optimizer)\n    scaler.update()\n"), "HG206"),
    "one of two losses unscaled": (
        gan("scaler.scale(gen(x)).backward()", "scaler.step(opt_g)", "disc(x).backward()",
            "scaler.step(opt_d)", "scaler.update()"), "HG206"),
    # float16 weights
    "a new module in half": (
        ("def train(x):\n    model = nn.Linear(4, 4).cuda().half()\n"
         "    scaler = torch.amp.GradScaler('cuda')\n"
         "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
         "    scaler.scale(model(x).sum()).backward()\n    scaler.step(optimizer)\n"
         "    scaler.update()\n"), "HG401"),
    "half in a helper": (
        ("def build():\n    return Net().half()\ndef train(x, optimizer, scaler):\n"
         "    model = build()\n    scaler.scale(model(x).sum()).backward()\n"
         "    scaler.step(optimizer)\n    scaler.update()\n"), "HG401"),
    # found by reading the first held-out half
    "apex's loss scale not saved": (
        ("from apex import amp\ndef train(model, optimizer, loader):\n    for x, y in loader:\n"
         "        with amp.scale_loss(model(x), optimizer) as loss:\n            loss.backward()\n"
         f"        optimizer.step()\n    {SAVE}\n"), "HG309"),
    "the optimizer added to a checkpoint later": (
        loop(after="state = {'m': model.state_dict()}; state['o'] = optimizer.state_dict(); "
             "torch.save(state, 'p')".replace("; ", "\n        ")), "HG309"),
    "a best score in a checkpoint that is not of the best weights": (
        loop(after='save_checkpoint({"o": optimizer.state_dict(), "best_iou": 0}, is_best=False)'), "HG309"),
    "a helper that does not begin with save": (
        loop(after="checkpoint_save(epoch, model, optimizer)"), "HG309"),
    "half weights to resume from": (
        ("def save(model, optimizer):\n    state = {'m': model.half(), 'o': optimizer.state_dict()}\n"
         "    torch.save(state, 'p')\n"), "HG311"),
    "update in every micro-batch, step in some": (
        loop("scaler.scale(loss).backward(); if epoch % 4 == 0:;     scaler.step(optimizer); "
             "scaler.update()"), "HG303"),
    "skip under a second condition": (
        loop("value = loss.item(); if not math.isfinite(value):;     if use_amp:;         continue; "
             f"{STEPS}"), "HG301"),
    "skip before a step in one call": (
        ("def train(model, optimizer, loader, loss_scaler):\n    for x, y in loader:\n"
         "        loss = model(x).mean()\n        if not torch.isfinite(loss):\n            continue\n"
         "        loss_scaler(loss, optimizer, parameters=model.parameters())\n"),
        "HG301"),
    "ranks that exchange another value after the skip": (
        loop(f"if torch.isnan(loss):;     continue; dist.all_reduce(x); {STEPS}"), "HG301"),
    "arguments from a dictionary": (
        ("from transformers import AutoModel, TrainingArguments\n"
         "model = AutoModel.from_pretrained('m', torch_dtype=torch.float16)\n"
         "settings = {'output_dir': 'o', 'fp16': True}\n"
         "arguments = TrainingArguments(**settings)\n"), "HG401"),
}  # fmt: skip

RIGHT = {
    "a loss that the caller has scaled": (
        "class Trainer:\n"
        "    def backward(self, loss):\n"
        "        self.optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        self.scaler.step(self.optimizer)\n"
        "        self.scaler.update()\n"
    ),
    "conditional scaler, saved": loop(
        scaler=f"{NEW} if use_amp else None",
        after='torch.save({"o": optimizer.state_dict(), "s": scaler.state_dict()}, "p")',
    ),
    "scaler per fold": PER_EPOCH.replace("for epoch in range(10)", "for fold in range(5)").replace(
        "train_one_epoch", "train_fold"
    ),
    "the best weights, which nothing resumes from": loop(after=SAVE.replace("last", "best")),
    "pictures, with the settings of the optimization": loop(
        after="save_images_png(loader, OPTIMIZATION=self.OPTIMIZATION, options=options)"
    ),
    "the scaler of another optimizer": (
        "class GAN:\n    def __init__(self):\n        self.scaler = torch.amp.GradScaler('cuda')\n"
        "    def train_classifier(self, model, loader):\n"
        "        optimizer = torch.optim.SGD(model.parameters(), 0.1)\n        for x in loader:\n"
        "            model(x).mean().backward()\n            optimizer.step()\n"
        f"        {SAVE}\n"
    ),
    "integer mask": "def f(s, m):\n    m = m.long()\n    return s.half() + (1 - m) * -1e9\n",
    "boolean mask": "def f(s, m):\n    return s.half() + (~m).float() * -1e9\n",
    "FloatTensor": "def f(m):\n    return torch.FloatTensor(3).masked_fill(m, -1e9)\n",
    "tuple of casts": (
        "def f(a, b, m):\n    a, b = a.float(), b.float()\n    return (a + b).masked_fill(m, -1e9)\n"
    ),
    "split of a cast": (
        "def f(x, m):\n    a, b = x.float().chunk(2)\n    return a.masked_fill(m, -1e9)\n"
    ),
    "a caller that casts": (
        "def mask(s, m):\n    return s.masked_fill(m, -1e9)\ndef f(s, m):\n    return mask(s.float(), m)\n"
    ),
    "autocast's float32 list": (
        "def f(x, w):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        p = (x @ w).softmax(-1)\n        q = (p + 1e-8).sqrt()\n"
        "        return (x @ w).pow(2).sum(-1), q\n"
    ),
    "two losses of one name": (
        "def a(x, y):\n    loss_fn = nn.BCELoss()\n    return loss_fn(x, y)\n"
        "def b(x, y):\n    loss_fn = nn.BCEWithLogitsLoss()\n    with torch.autocast('cuda'):\n"
        "        return loss_fn(x, y)\n"
    ),
    "a new scale is an update": loop(
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(1024.0)"
    ),
    "autocast without gradients": (
        "def train(model, teacher, optimizer, x):\n    with torch.no_grad():\n"
        "        with torch.autocast('cuda', dtype=torch.float16):\n            t = teacher(x)\n"
        "    loss = (model(x) - t).abs().mean()\n    loss.backward()\n    optimizer.step()\n"
    ),
    "half for inference": (
        "def run(model, x, optimizer, train):\n    if not train:\n        model = model.half()\n"
        "    loss = model(x).mean()\n    loss.backward()\n    optimizer.step()\n"
    ),
    "adapters beside Adam": (
        "from peft import get_peft_model\nmodel = Model().half()\nmodel = get_peft_model(model)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
    ),
    "norm after unscale": loop(
        "scaler.scale(loss).backward(); scaler.unscale_(optimizer); "
        "n = nn.utils.get_total_norm(model.parameters()); scaler.step(optimizer); scaler.update()"
    ),
    "a norm divided by the scale, by the function": loop(
        "scaler.scale(loss).backward(); n = get_grad_norm(model, scale=scaler.get_scale()); "
        "scaler.step(optimizer); scaler.update()"
    ),
    "a norm divided by the scale, later": loop(
        "scaler.scale(loss).backward(); n = get_grad_norm(model); n = n / scaler.get_scale(); "
        "scaler.step(optimizer); scaler.update()"
    ),
    "a scale of one that stays": loop(
        "scaler.scale(loss).backward(); optimizer.step()",
        scaler="scaler = torch.amp.GradScaler(init_scale=1)",
    ),
    "a benchmark that zeroes no gradients": (
        "def test_speed(net, x):\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "    scaler = torch.amp.GradScaler('cuda')\n    for _ in range(10):\n"
        "        scaler.scale(net(x).mean()).backward()\n        scaler.step(optimizer)\n"
        "        scaler.update()\n"
    ),
    "anomaly mode as an option": (
        f"{NEW}\nif args.detect_anomaly:\n    torch.autograd.set_detect_anomaly(True)\n"
    ),
    "a skip after ranks have agreed": loop(
        f"bad = torch.isnan(loss); dist.all_reduce(bad); if bad:;     continue; {STEPS}"
    ),
    "step and update in some micro-batches": loop(
        "scaler.scale(loss).backward(); if epoch % 4 == 0:;     scaler.step(optimizer);     scaler.update()"
    ),
    "a continue after a finite loss": loop(
        f"if torch.isfinite(loss):;     log(loss);     if use_amp:;         continue; {STEPS}"
    ),
    "apex for its optimizer only": (
        "from apex.optimizers import FusedAdam\ndef save(model, optimizer, samples):\n"
        f"    {SAVE}\n"
    ),
    "autocast in a helper, turned off": (
        "def loss_of(model, x, amp=False):\n    if amp:\n        with torch.autocast('cuda'):\n"
        "            return model(x).mean()\n    return model(x).mean()\n"
        "def train(model, optimizer, loader):\n    for x in loader:\n"
        "        loss = loss_of(model, x)\n        loss.backward()\n        optimizer.step()\n"
    ),
    "a step in one call": (
        "def train(model, optimizer, loader, loss_scaler):\n    for x, y in loader:\n"
        "        loss = model(x).mean()\n"
        "        loss_scaler(loss, optimizer, parameters=model.parameters())\n"
    ),
    "a scaler for float16 only, and bfloat16 by default": loop(
        scaler='dtype = "bfloat16"\n    scaler = torch.amp.GradScaler("cuda", enabled=dtype == "float16")',
        after=SAVE,
    ),
    "both losses scaled": gan(
        "scaler.scale(gen(x)).backward()", "scaler.step(opt_g)",
        "scaler.scale(disc(x)).backward()", "scaler.step(opt_d)", "scaler.update()",
    ),
}  # fmt: skip


@each(("text", "code"), MISSED.values())
def test_a_mistake_once_missed_is_found(text: str, code: str) -> None:
    assert code in codes(HEAD + text)


@each("text", RIGHT.values())
def test_its_right_form_is_not(text: str) -> None:
    assert codes(HEAD + text) == []
