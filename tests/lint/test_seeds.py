"""The mistakes of the five teams whose notes halfguard grew from: each is found, and its cure is not.

The snippets are our own, in the smallest loop that shows the same mistake.
"""

from __future__ import annotations

from tests.lint.helper import codes
from tests.support.cases import each

LOOP = """\
import torch
from torch import nn

def fit(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda", growth_interval=2000)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
{}
"""


def loop(*lines: str) -> str:
    return LOOP.format("\n".join(f"        {line}" for line in lines))


END = ("scaler.step(optimizer)", "scaler.update()")
WRONG = {
    "000 constant beyond half": (
        "import torch\ndef f(x, m):\n    return x.masked_fill(m, -1e9)\n", "HG101"),
    "000 update without a check": (
        loop("overflow = any(p.grad.isinf().any() for p in model.parameters())", "if overflow:",
             "    scaler.update()", "    continue", *END), "HG303"),
    "002 clip while scaled": (
        loop("nn.utils.clip_grad_norm_(model.parameters(), 0.5)", *END), "HG201"),
    "002 skip without update": (
        loop("scaler.unscale_(optimizer)",
             "grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
             "if grad_norm > 2.0 or torch.isnan(grad_norm):", "    continue", *END), "HG302"),
    "003 half weights and fp16": (
        ("import torch\nfrom transformers import AutoModelForCausalLM, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('m', torch_dtype=torch.float16)\n"
        "arguments = TrainingArguments('out', fp16=True)\n"), "HG401"),
    "004 old names": (
        ("import torch\ndef f(layer, x):\n    with torch.cuda.amp.autocast(enabled=False):\n"
        "        return layer(x.float())\n"), "HG405"),
}  # fmt: skip

RIGHT = {
    "000 limited input": "import torch\ndef f(a):\n    return torch.clamp(a, 0.0, 1.0)\n",
    "000 settings of the scaler": "import torch\nscaler = torch.amp.GradScaler('cuda', "
    "init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000)\n",
    "001 parameter": "import torch\nfrom torch import nn\nclass G(nn.Module):\n"
    "    def __init__(self, n):\n"
    "        self.p = nn.Parameter(nn.init.xavier_normal_(torch.empty(n, 64)))\n",
    "001 logsigmoid": "import torch\ndef f(s):\n"
    "    return -torch.nn.functional.logsigmoid(s).mean()\n",
    "002 loss in float32": "import torch\ndef f(logits, y):\n"
    "    return torch.nn.functional.cross_entropy(logits.float(), y)\n",
    "002 clip after unscale": loop(
        "scaler.unscale_(optimizer)", "nn.utils.clip_grad_norm_(model.parameters(), 0.5)", *END
    ),
    "003 float32 weights": "import torch\nfrom transformers import AutoModelForCausalLM, "
    "TrainingArguments\nmodel = AutoModelForCausalLM.from_pretrained('m')\n"
    "arguments = TrainingArguments('out', fp16=True, logging_nan_inf_filter=False)\n",
    "003 bfloat16": "import torch\nfrom transformers import AutoModel, TrainingArguments\n"
    "model = AutoModel.from_pretrained('m', torch_dtype=torch.bfloat16)\n"
    "arguments = TrainingArguments('out', bf16=True)\n",
    "004 part in float32": "import torch\ndef f(layer, x):\n"
    "    with torch.autocast('cuda', enabled=False):\n        return layer(x.float())\n",
}


@each(("text", "code"), WRONG.values())
def test_the_wrong_snippet_is_found(text: str, code: str) -> None:
    assert code in codes(text)


@each("text", RIGHT.values())
def test_the_right_snippet_is_not(text: str) -> None:
    assert codes(text) == []
