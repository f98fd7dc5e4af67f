"""Thirty training scripts without a mistake, in the ways people write them: lint says nothing."""

from __future__ import annotations

import textwrap

from halfguard.lint.settings import Settings
from tests.lint.helper import lint
from tests.support.cases import each

HEAD = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
"""


def loop(step: str, *, setup: str = "", inner: str = "loss = F.cross_entropy(model(x), y)") -> str:
    """Return a training loop with float16 autocast, a scaler, and the given lines of a step."""
    lines = [
        "def train(model, optimizer, loader, scheduler=None, ema=None, rank=0):",
        '    scaler = torch.amp.GradScaler("cuda")',
        *(f"    {line}" for line in setup.splitlines()),
        "    for i, (x, y) in enumerate(loader):",
        '        with torch.autocast("cuda", dtype=torch.float16):',
        *(f"            {line}" for line in inner.splitlines()),
        *(f"        {line}" for line in textwrap.dedent(step).strip().splitlines()),
    ]
    return "\n".join(lines) + "\n"


BASIC = """
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad(set_to_none=True)
"""
CLIPPED = BASIC.replace(
    "scaler.step",
    "scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step",
)
SAVED = """
if i % 100 == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict()}, "last.pt")
"""

HEALTHY = {
    "plain amp": loop(BASIC),
    "clipping": loop(CLIPPED),
    "checkpoint": loop(BASIC + SAVED),
    "norm logged after unscale": loop(
        """
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        scaler.step(optimizer)
        scaler.update()
        print(norm)
        """),
    "accumulation": loop(
        """
        scaler.scale(loss / 4).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """),
    "optional amp": loop(
        """
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        """),
    "scheduler per epoch": (
        loop(BASIC) + "    scheduler.step()\n"),
    "scheduler only if stepped": loop(
        BASIC + "if ema is not None and ema.stepped():\n    scheduler.step()\n"),
    "stop at a bad loss": loop(
        "if not math.isfinite(loss.item()):\n    raise SystemExit(1)\n" + BASIC.strip()),
    "all ranks agree": "import torch.distributed as dist\n" + loop(
        """
        bad = (~torch.isfinite(loss.detach())).float()
        dist.all_reduce(bad)
        if bad > 0:
            continue
        """ + textwrap.indent(BASIC, " " * 8)),
    "two optimizers": """
def train(gen, disc, opt_g, opt_d, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_d = F.softplus(-disc(x)).mean()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        opt_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = F.softplus(-disc(gen(x))).mean()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
""",
    "bfloat16 without a scaler": """
def train(model, optimizer, loader):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
    "float32": """
def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
    "float32 island": loop(
        BASIC, inner="out = model(x)\nwith torch.autocast('cuda', enabled=False):\n"
        "    loss = F.cross_entropy(out.float(), y)"),
    "distillation in float32": loop(
        BASIC, inner="student = model(x).float()\nwith torch.no_grad():\n    teacher = ema(x).float()\n"
        "loss = F.kl_div(F.log_softmax(student, -1), F.softmax(teacher, -1), reduction='batchmean')"),
    "pairwise loss": loop(BASIC, inner="loss = -F.logsigmoid(model(x) - model(y)).mean()"),
    "binary loss with logits": loop(
        BASIC, inner="loss = F.binary_cross_entropy_with_logits(model(x), y)"),
    "attention mask of its own dtype": """
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ v
""",
    "attention mask of infinity": """
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        scores = (q @ k.mT).masked_fill(mask, float("-inf"))
        return scores.softmax(-1) @ v
""",
    "root mean square in float32": """
class Norm(nn.Module):
    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
""",
    "entropy in float32": """
def entropy(logits):
    logp = F.log_softmax(logits.float(), dim=-1)
    return -(logp.exp() * logp).sum(-1)
""",
    "larger eps": """
class Head(nn.Module):
    def forward(self, x):
        return torch.log(torch.relu(x) + 1e-5)
""",
    "accelerate": """
from accelerate import Accelerator

def train(model, optimizer, loader, scheduler):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
    "lightning": """
import lightning as L

class Module(L.LightningModule):
    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self(x), y)

trainer = L.Trainer(precision="16-mixed", gradient_clip_val=1.0)
""",
    "transformers": """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("name")
arguments = TrainingArguments("out", fp16=True, max_grad_norm=1.0)
Trainer(model=model, args=arguments).train()
""",
    "half for inference": """
@torch.inference_mode()
def predict(model, x):
    model = model.half().eval()
    return model(x.half()).float()
""",
    "frozen half encoder": """
def train(head, encoder, optimizer, loader):
    encoder = encoder.half().eval()
    encoder.requires_grad_(False)
    for x, y in loader:
        with torch.no_grad():
            features = encoder(x.half())
        F.cross_entropy(head(features.float()), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "evaluation": """
@torch.no_grad()
def evaluate(model, loader):
    correct = 0
    with torch.autocast("cuda", dtype=torch.float16):
        for x, y in loader:
            correct += (model(x).argmax(-1) == y).sum().item()
    return correct
""",
    "scaler as a parameter": """
def train_one_epoch(model, optimizer, loader, scaler):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "trainer class": """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def save(self, path):
        state = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        torch.save(state, path)
""",
    "guard": """
import halfguard as hg

def train(model, optimizer, loader, loss_fn):
    guard = hg.Guard(model, optimizer)
    for batch in loader:
        guard.step(loss_fn, batch)
""",
}  # fmt: skip


def test_there_are_thirty() -> None:
    assert len(HEALTHY) >= 30


@each("text", HEALTHY.values())
def test_nothing_is_found(text: str) -> None:
    compile(HEAD + text, "script.py", "exec")
    assert [d.place + d.code for d in lint(HEAD + text, settings=Settings())] == []
