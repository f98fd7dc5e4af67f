"""Other ways to write what a repair mends, and lines that it leaves alone because nothing is certain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halfguard.repairs.casts import call_in_fp32, float_arguments, float_positions
from halfguard.repairs.fp32_weights import fp32_parameters, fp32_weights, island
from halfguard.repairs.masks import (
    deviation_of_one,
    divide_by_nonzero,
    ignored_labels,
    labels_from_zero,
    mean_of_nothing,
    skip_bad_batch,
    smaller_masks,
    smallest_number,
)
from halfguard.repairs.repair import Repair
from halfguard.repairs.scaling import (
    load_if_not_empty,
    loss_per_micro_batch,
    unscale_before_clipping,
    unscale_once,
    unscale_penalty,
)
from halfguard.repairs.settings import (
    anomaly_off,
    autocast_region,
    framework_precision,
    initial_scale,
    optimizer_eps,
    scaler_device,
)
from halfguard.repairs.steps import (
    add_update,
    is_returned,
    leave_out_step,
    optimizer_last,
    scaler_once,
    step_by_scaler,
    update_after_step,
    update_before_continue,
    zero_gradients,
)
from tests.repairs.patched_script import at, patched

EPOCHS = """def epoch():
    s = GradScaler()
    for x in data:
        g(s, x)


for _ in range(9):
    epoch()
"""
MICRO = """for b in d:
    s.unscale_(o)
    norm = clip_grad_norm_(p, 1)
    if last:
        s.step(o)
    print(norm)
"""
LOOP = """for x in data:
    scaler.scale(loss(x)).backward()
    if bad():
        continue
    scaler.step(optimizer)
    scaler.update()
"""
RUNNER = """class Runner:
    def __init__(self):
        self.opt = self.build()
        self.prepare()

    def build(self):
        return AdamW(self.model.parameters())
"""
RANGE = "import torch\ndef f(x, ids, n):\n    rows = torch.arange(n)\n    return "
ADAM = {"optimizer": "AdamW", "eps": "1e-4"}
CTC = "loss = scale(F.ctc_loss(x @ w, y), 2)\n"
BF16 = {"name": "dtype", "value": "torch.bfloat16"}
INNER = "    for p in params:\n        if p.grad is None:\n            continue\n"
FP16, KEPT = {"dtype": "float16"}, "model = Net(3)\nmodel.forward = torch.autocast("
DECORATED = (
    "class A:\n    @torch.autocast('cpu', dtype=torch.float16)\n"
    "    def forward(self, x): return x.masked_fill(m, -1e9)\n"
)
PASS = "for x in data:\n    f(x).backward()\n    "
Row = tuple[Any, dict[str, Any], str, str, str]
# A repair, what it is given (places as texts after @), a source, a text of its line, and what is written.
ROWS: list[Row] = [
    (optimizer_eps, ADAM, "opt = AdamW(\n    [p for p in ps],\n    lr=1,\n)\n", "AdamW", "lr=1, eps=1e-4)"),
    (optimizer_eps, ADAM, "n = N(3); o = AdamW(n.p())\n", "AdamW", "n = N(3); o = AdamW(n.p(), eps=1e-4)\n"),
    (optimizer_eps, ADAM, "a = AdamW(p); b = AdamW(q)\n", "AdamW", ""),
    (optimizer_eps, ADAM, "a = TrainingArguments('o', n=3)\nt.train()\n", "train()",
     "n=3, adam_epsilon=1e-4)"),
    (fp32_parameters, {}, "train(AdamW(ps))\n", "AdamW", ""),
    (call_in_fp32, {"kernel": "ctc_loss_cpu", "index": 0}, CTC, "ctc", "F.ctc_loss((x @ w).float(), y), 2)"),
    (call_in_fp32, {"kernel": "ctc_loss_cpu", "index": 1}, CTC, "ctc", "F.ctc_loss(x @ w, y).float(), 2)"),
    (call_in_fp32, {"kernel": "ctc_loss_cpu", "index": 2}, CTC, "ctc", ""),
    (fp32_weights, FP16, "import torch\nmodel = Net(3).to(torch.float16)\n", "Net", KEPT),
    (fp32_weights, FP16, "import torch\nmodel = Net(3).to(dtype=torch.half)\n", "Net", KEPT),
    (fp32_weights, FP16, "import torch\nmodel = Net(3)\nmodel.half()", ".half",
     "Net(3)\n\nmodel.forward = torch."),
    (fp32_weights, FP16, "import torch\ntrainer.fit(model, loader)\n", "fit", ""),
    (fp32_weights, FP16, "import torch\nt = Tracks(x, torch.half)\n", "t =", "Tracks(x, torch.float32)\n"),
    (fp32_weights, FP16, "import torch\ndef f():\n    return Net().to(torch.bfloat16)\n", "Net",
     "    return Net()\n"),
    (fp32_weights, FP16, "import torch\nmodel = Net(3).to(getattr(torch, args.dtype))\n", "Net",
     "model = Net(3).float()\nmodel.forward = torch.autocast("),
    (fp32_weights, FP16, "import torch\nd = torch.half if amp else torch.float32\nv.to(d)\n", "v.to",
     "d = torch.float32\nv.to(d)"),
    (labels_from_zero, {}, "loss = criterion(out, y)\n", "loss", "criterion(out, y - 1)\n"),
    (labels_from_zero, {}, "loss = criterion(out, y) + other(a, b)\n", "loss", ""),
    (skip_bad_batch, {}, "f(x).backward()\n", "f(", ""),
    (fp32_weights, FP16, "import torch\ndtype = torch.float16\nv.to(dtype)\n", "v.to",
     "dtype = torch.float32\nv"),
    (fp32_weights, {"dtype": None}, "v = V().half()\nz = v.f(b.half())\n", "v =", "v = V()\nz = v.f(b)\n"),
    (fp32_weights, FP16, "import os\nfrom a import b\n\nm = b()\nm = m.half()\n", ".half",
     "b\nimport torch\n\nm"),
    (autocast_region, BF16, DECORATED, "autocast", "@torch.autocast('cpu', dtype=torch.bfloat16)\n"),
    (smallest_number, FP16, DECORATED, "autocast", ""),
    (framework_precision, {"value": "bf16"}, "d = MixedPrecision('16-mixed', 'cpu', scaler=G('cpu'))\n", "d",
     "d = MixedPrecision(\"bf16-mixed\", 'cpu')\n"),
    (smallest_number, FP16, 'w = w.fill(m, float("-inf"))\n', "fill",
     "w.fill(m, torch.finfo(torch.float16).min)"),
    (smallest_number, FP16, "w = w.fill(m, -torch.inf)\n", "fill",
     "w.fill(m, torch.finfo(torch.float16).min)"),
    (smallest_number, FP16, "w = w.fill(m, - 10000000)\n", "fill",
     "w.fill(m, torch.finfo(torch.float16).min)"),
    (step_by_scaler, {"scaling": "@scale("}, "s.scale(y).backward()\nlog(o.step())\n", "step", ""),
    (mean_of_nothing, {}, "a = x[m].mean() + 1\n", "a", "a = (x[m].sum() / max(x[m].numel(), 1)) + 1\n"),
    (mean_of_nothing, {}, "a = F.mse_loss(x + 1, y,)\n", "a",
     'a = (F.mse_loss(x + 1, y, reduction="sum") / max((x + 1).numel(), 1))\n'),
    (mean_of_nothing, {}, "a = F.mse_loss(x, y, reduction=r)\n", "a", ""),
    (mean_of_nothing, {}, "a = x.mean(0)\n", "a", ""),
    (deviation_of_one, {}, "a = torch.std(x)\n", "a", ""),
    (deviation_of_one, {}, "a = x.std(0)\n", "a", ""),
    (scaler_once, {}, "def f():\n    for x in data:\n        s = GradScaler()\n        g(s, x)\n", "s =",
     "def f():\n    s = GradScaler()\n    for x in data:\n        g(s, x)\n"),
    (scaler_once, {}, "def f(d):\n    s = GradScaler(d)\n    g(s)\n", "s =", ""),
    (scaler_once, {}, "def f():\n    s = GradScaler()\n    for x in data:\n        g(s, x)\n", "s =", ""),
    (scaler_once, {}, EPOCHS, "s =", "s = GradScaler()\n\n\ndef epoch():\n    for x in data:\n"),
    (unscale_once, {}, MICRO, "unscale_", "norm = torch.zeros(())\nfor b in d:\n    if last:\n        s.un"),
    (skip_bad_batch, {}, "for b in d:\n    accelerator.backward(loss)\n", "backward",
     "    if not torch.isfinite(loss):\n        continue\n"),
    (ignored_labels, {"label": -1}, "y = torch.full((2, 3), -1)\nz = f(-1)\n", "y",
     "y = torch.full((2, 3), -100)\nz = f(-1)\n"),
    (ignored_labels, {"label": -1}, "y = torch.full((2, 3), -1)\nz = x.fill_(-1)\n", "y", ""),
    (divide_by_nonzero, {}, "import numpy as np\nu = a / (b - c)\n", "u =",
     "np.where((b - c) == 0, 1, b - c)"),
    (divide_by_nonzero, {}, "import numpy as np\nu = a / b / c\n", "u", ""),
    (divide_by_nonzero, {}, "u = a / b\n", "u", ""),
    (leave_out_step, {}, "scaler.step(optimizer); optimizer.step()\n", "step", ""),
    (update_before_continue, {}, LOOP.replace("bad():\n        continue", "bad(): continue"), "scale(",
     "    if bad(): scaler.step(optimizer); scaler.update(); continue\n"),
    (update_before_continue, {}, LOOP.replace("    if bad():\n        continue\n", INNER), "scale(", ""),
    (initial_scale, {"scale": 1024.0}, "s = torch.amp.GradScaler()", "s", "GradScaler(init_scale=1024.0)"),
    (initial_scale, {"scale": 1024.0}, "s = GradScaler(device)", "s",
     "GradScaler(device, init_scale=1024.0)"),
    (initial_scale, {"scale": 1024.0}, "a = GradScaler(); b = GradScaler()", "a", ""),
    (initial_scale, {"scale": 1024.0}, 's = GradScaler("cpu", 2.0**40)', "s", ""),
    (initial_scale, {"scale": 1024.0}, "s = GradScaler(2.0**40)", "s", ""),
    (scaler_device, {"device": "cpu"}, 's = GradScaler("cuda")', "s", 's = GradScaler("cpu")'),
    (scaler_device, {"device": "cpu"}, "s = GradScaler(device)", "s", ""),
    (unscale_once, {}, "for b in d:\n    log()\n    s.unscale_(o)\n    s.step(o)\n", "unscale_",
     "()\n    s.step(o)\n"),
    (unscale_once, {}, ("for b in d:\n    if first:\n        s.unscale_(o)\n        clip_grad_norm_(p, 1)\n"
     "    if last:\n        s.step(o)\n"), "unscale_",
     "for b in d:\n    if last:\n        s.unscale_(o)\n        clip_grad_norm_(p, 1)\n        s.step(o)\n"),
    (unscale_once, {}, "with acc.accumulate(m):\n    acc.clip_grad_norm_(p, 1.0)\n", "clip",
     "    if acc.sync_gradients:\n        acc.clip_grad_norm_("),
    (unscale_once, {}, "engine.unscale_(opt)\n", "engine", ""),
    (unscale_before_clipping, {}, "m, o = acc.prepare(m, o)\nnn.clip_grad_norm_(p, 1)\n", "clip",
     "acc.clip_grad_norm_"),
    (unscale_before_clipping, {},
     "for k in r:\n    s.scale(f()).backward()\n    clip_grad_norm_(p, 1)\ns.unscale_(o)\ns.step(o)\n",
     "clip", ""),
    (unscale_penalty, {}, "g = grad(s.scale(y), x)[0]", "g", "g = grad(s.scale(y), x)[0] / s.get_scale()"),
    (unscale_penalty, {}, "(g,) = grad(s.scale(y), x)", "g",
     "(g,) = (grad(s.scale(y), x)[0] / s.get_scale(),)"),
    (update_after_step, {}, "engine.run()\n", "engine", ""),
    (update_after_step, {},
     "for b in d:\n    if last:\n        s.step(a)\n        s.step(b)\n        go()\n    s.update()\n",
     "update", "        s.step(b)\n        s.update()\n        go()\n"),
    (update_after_step, {}, "if x:\n    s.step(a)\nif y:\n    s.step(b)\ns.update()\n", "update", ""),
    (add_update, {}, "engine.run()\n", "engine", ""),
    (add_update, {}, "s.step(a)\ns.step(b)\ns.update()\n", "(a)",
     "s.step(a)\ns.update()\ns.step(b)\ns.update()\n"),
    (load_if_not_empty, {}, "engine.run()\n", "engine", ""),
    (optimizer_last, {}, "opt = AdamW(\n    p,\n)\nm.head = new()\ngo(opt)\n", "AdamW",
     "m.head = new()\nopt = AdamW(\n    p,\n)\ngo(opt)\n"),
    (optimizer_last, {}, "opt = AdamW(p)\nprepare(opt)\n", "AdamW", ""),
    (optimizer_last, {}, RUNNER, "self.opt", "        self.prepare()\n        self.opt = self.build()\n"),
    (float_arguments, {"error": "but got Float and Half"}, "score = self.head(h)\n", "score", ""),
    (loss_per_micro_batch, {}, "for m in range(N):\n    loss.backward()\n    opt.step()\n", "backward", ""),
    (skip_bad_batch, {}, "def step(x):\n    loss = torch.nan_to_num(loss)\n", "nan_to_num", ""),
    (zero_gradients, {},
     "for b in d:\n    for p in b:\n        f(p).backward()\n    opt.step()\n    print(b)\n", "opt.step",
     "    opt.step()\n    opt.zero_grad()\n"),
    *((zero_gradients, {}, f"{PASS}{line}\n", line.split("\n", maxsplit=1)[0], "") for line in (
        "env.step(action)", "env.step()", "opt.step(closure)", "trainer.train()", "opt.step(); log()",
        "opt.step()\n    print(p.grad)", "opt.step()\n    if last:\n        opt.zero_grad()",
    )),
    *((repair, given, f"import torch\n{line}{cast}\n", "B()", "") for line in (
        "out = 1; net = B()", "if big: net = B()", "for _ in range(2): net = B()", "class C: net = B()",
    ) for repair, given, cast in ((island, {"path": ""}, ""), (fp32_weights, FP16, ".half()"))),
    *((float_positions, {}, f"{RANGE}{before}\n", "return", f"{RANGE}{after}\n" if after else "")
      for before, after in (
        ("torch.arange(a, b).to(device).half()", "torch.arange(a, b).to(device).float()"),
        ("torch.arange(n).half().to(x.device)", "torch.arange(n).float().to(x.device)"),
        ('torch.arange(n).to("cpu").to(x.dtype)', 'torch.arange(n).to("cpu").float()'),
        ("torch.arange(n).to(device, torch.float16)", "torch.arange(n).to(device, torch.float32)"),
        ("torch.arange(n).to(device=d, dtype=x.dtype)", "torch.arange(n).to(device=d, dtype=torch.float32)"),
        ("f(x.half()) + torch.arange(n).half()", "f(x.half()) + torch.arange(n).float()"),
        ("(torch.arange(n) + k).to(dev, x.dtype)", "(torch.arange(n) + k).to(dev, torch.float32)"),
        ("ids.to(dtype=torch.bfloat16)", "ids.float()"),
        ("rows.half() * x.half()", "rows.float() * x.half()"),
        ("ids.half() + x.half()", ""),  # which of them is not certain
        ("ids.to(x)", ""),
        ("ids.type_as(x).to(device)", ""),
        ("angles(torch.arange(n), x)", ""),  # is not cast on its line
    )),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0].edit.__name__}-{row[2][-40:]!r}")
def test_a_line_is_mended_or_left_alone(script: Path, row: Row) -> None:
    repair, given, source, marker, expected = row
    script.write_text(source)
    places = {name: at(script, v[1:]) for name, v in given.items() if str(v).startswith("@")}
    patch = repair(at(script, marker), **given | places)
    assert (expected in patched(script, patch)) if expected else not patch


MASKS = "def f(q):\n    a = m * torch.finfo(q.dtype).min\n    return a + b\n"


@pytest.mark.parametrize(
    ("repair", "source", "marker", "named"),
    [
        (smaller_masks, MASKS, "return", "finfo"),
        (update_before_continue, LOOP, "scale(", "continue"),
        (anomaly_off, "trainer = Trainer(detect_anomaly=True)\n", "Trainer", "Trainer"),
    ],
)
def test_the_line_that_is_changed_is_named(
    script: Path, repair: Repair[Any], source: str, marker: str, named: str
) -> None:
    script.write_text(source)
    assert repair.with_places(at(script, marker))[1] == [at(script, named)]


def test_an_optimizer_that_a_helper_returns_gets_its_name_elsewhere(script: Path) -> None:
    script.write_text(RUNNER)
    assert is_returned(at(script, "AdamW"))
