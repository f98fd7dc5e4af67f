"""Patches of settings: an argument, a cast, an inserted line, a loop that misuses its scaler."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.repairs.casts import call_in_fp32
from halfguard.repairs.fp32_weights import fp32_parameters, fp32_weights, island
from halfguard.repairs.masks import divide_by_labels, smaller_masks, smallest_number
from halfguard.repairs.settings import (
    add_to_prepare,
    autocast_region,
    framework_precision,
    initial_scale,
    optimizer_eps,
)
from halfguard.repairs.steps import leave_out_step, step_by_scaler, update_before_continue
from tests.repairs.patched_script import at, patched


@pytest.mark.parametrize(
    ("source", "place", "expected"),
    [
        ("opt = AdamW(\n    [p for p in ps],\n    lr=1e-3,\n)\n", "AdamW", "lr=1e-3, eps=1e-4)"),
        # Only the optimizer of a line that it shares.
        ("net = Net(3); opt = AdamW(net.parameters())\n", "AdamW",
         "net = Net(3); opt = AdamW(net.parameters(), eps=1e-4)\n"),
        ("a = AdamW(p); b = AdamW(q)\n", "AdamW", ""),
        # The arguments of a trainer that makes the optimizer.
        ("args = TrainingArguments('out', max_steps=3)\ntrainer.train()\n", "trainer.train",
         "max_steps=3, adam_epsilon=1e-4)"),
    ],
)  # fmt: skip
def test_an_optimizer_gets_an_eps(script: Path, source: str, place: str, expected: str) -> None:
    script.write_text(source)
    patch = optimizer_eps(at(script, place), "AdamW", "1e-4")
    assert (expected in patched(script, patch)) if expected else not patch


def test_what_an_optimizer_trains_becomes_fp32(script: Path) -> None:
    script.write_text("def main():\n    opt = AdamW(ps)\n    train(opt)\n")
    assert patched(script, fp32_parameters(at(script, "AdamW"))) == (
        "def main():\n    opt = AdamW(ps)\n"
        "    for group in opt.param_groups:  # a GradScaler needs FP32 weights\n"
        '        for parameter in group["params"]:\n'
        "            parameter.data = parameter.data.float()\n"
        "    train(opt)\n"
    )


def test_an_optimizer_without_a_name_is_left_alone(script: Path) -> None:
    script.write_text("train(AdamW(ps))\n")
    assert fp32_parameters(at(script, "AdamW")) == ""


def test_the_function_of_the_kernel_is_cast_first(script: Path) -> None:
    script.write_text("loss = scale(F.ctc_loss(x @ w, y), 2)\n")
    found = [call_in_fp32(at(script, "ctc"), "ctc_loss_cpu", index) for index in range(3)]
    assert not found[2]
    assert "+loss = scale(F.ctc_loss((x @ w).float(), y), 2)" in found[0]
    assert "+loss = scale(F.ctc_loss(x @ w, y).float(), 2)" in found[1]


@pytest.mark.parametrize("cast", [".half()", ".to(torch.float16)", ".to(dtype=torch.half)"])
def test_weights_stay_in_fp32_under_autocast(script: Path, cast: str) -> None:
    script.write_text(f"import torch\nmodel = Net(3){cast}\nprint(model)\n")
    text = patched(script, fp32_weights(at(script, "Net"), "float16"))
    assert "model = Net(3)\nmodel.forward = torch.autocast(" in text


def test_a_statement_that_casts_a_model_in_place(script: Path) -> None:
    script.write_text("import torch\nmodel = Net()\nmodel.half()")
    text = patched(script, fp32_weights(at(script, ".half"), "bfloat16"))
    assert "model = Net()\n\nmodel.forward = torch.autocast(" in text
    assert "dtype=torch.bfloat16)(model.forward)" in text


def test_a_model_that_is_not_cast_on_the_line_has_no_patch(script: Path) -> None:
    script.write_text("import torch\ntrainer.fit(model, loader)\n")
    assert not fp32_weights(at(script, "fit"), "float16")


def test_a_region_becomes_one_of_bfloat16(script: Path) -> None:
    script.write_text("with torch.autocast('cpu', dtype=torch.float16):\n    pass\n")
    patch = autocast_region(at(script, "autocast"), "dtype", "torch.bfloat16")
    assert "dtype=torch.bfloat16)" in patched(script, patch)


def test_settings_of_frameworks_become_bfloat16(script: Path) -> None:
    script.write_text(
        "a = Trainer(precision='16-mixed')\nb = Accelerator(mixed_precision='fp16')\n"
        "c = TrainingArguments('o', fp16=True)\n"
        "d = MixedPrecision('16-mixed', 'cpu', scaler=GradScaler('cpu'))\n"
    )
    text = patched(script, framework_precision((str(script), 0), "bf16"))
    assert 'precision="bf16-mixed"' in text
    assert 'mixed_precision="bf16"' in text
    assert "TrainingArguments('o', bf16=True)" in text
    assert "d = MixedPrecision(\"bf16-mixed\", 'cpu')\n" in text


def test_a_module_becomes_an_island_after_the_line_that_made_it(script: Path) -> None:
    script.write_text("import torch\nclass A:\n    def __init__(self):\n        self.net = B()\n")
    text = patched(script, island(at(script, "self.net"), "0.wo"))
    assert '        halfguard.fp32_island(self.net.get_submodule("0.wo"))\n' in text
    assert "import halfguard\n" in text


@pytest.mark.parametrize(
    "line",
    [
        "net = B(); out = net(x)",
        "out = 1; net = B()",
        "if big: net = B()",
        "for _ in range(2): net = B()",
        "class C: net = B()",
    ],
)
def test_a_line_of_several_statements_gets_no_island_and_no_autocast(
    script: Path, line: str
) -> None:
    script.write_text(f"import torch\n{line}\n")
    assert not island((str(script), 2), "")
    script.write_text(f"import torch\n{line.replace('B()', 'B().half()')}\n")
    assert not fp32_weights((str(script), 2), "float16")


def test_a_decorator_is_changed_and_not_what_stands_around_it(script: Path) -> None:
    script.write_text(
        "class A:\n    @torch.autocast('cpu', dtype=torch.float16)\n"
        "    def forward(self, x): return x.masked_fill(m, -1e9)\n"
    )
    place = at(script, "autocast")
    assert not smallest_number(place, "float16")
    text = patched(script, autocast_region(place, "dtype", "torch.bfloat16"))
    assert "@torch.autocast('cpu', dtype=torch.bfloat16)\n" in text


@pytest.mark.parametrize("constant", ["-1e9", 'float("-inf")', "-torch.inf", "- 10000000"])
def test_a_mask_becomes_the_smallest_number(script: Path, constant: str) -> None:
    script.write_text(f"import torch\nw = w.masked_fill(m, {constant})\n")
    patch = smallest_number(at(script, "masked"), "float16")
    after = "import torch\nw = w.masked_fill(m, torch.finfo(torch.float16).min)\n"
    assert patched(script, patch) == after


def test_masks_that_are_added_become_smaller(script: Path) -> None:
    script.write_text("def f(q):\n    a = m * torch.finfo(q.dtype).min\n    return a + b\n")
    patch, lines = smaller_masks.with_places(at(script, "return"))
    assert lines == [(str(script), 2)]
    assert "(torch.finfo(q.dtype).min / 4)" in patched(script, patch)


def test_a_mean_over_no_label_is_divided_by_1(script: Path) -> None:
    script.write_text("loss = F.cross_entropy(x, y, ignore_index=-1)\n")
    text = patched(script, divide_by_labels(at(script, "cross")))
    assert 'ignore_index=-1, reduction="sum") / (y != -1).sum().clamp(min=1)' in text


LOOP = """for x in data:
    optimizer.zero_grad()
    scaler.scale(loss(x)).backward()
    if bad():
        continue
    scaler.step(optimizer)
    scaler.update()
"""


def test_a_loop_that_goes_on_updates_its_scaler(script: Path) -> None:
    script.write_text(LOOP)
    patch, places = update_before_continue.with_places(at(script, "scaler.scale"))
    assert places == [at(script, "continue")]
    wanted = "        scaler.step(optimizer)\n        scaler.update()\n        continue\n"
    assert wanted in patched(script, patch)


def test_a_step_without_the_scaler_becomes_one_with_it(script: Path) -> None:
    text = LOOP.replace(
        "    scaler.step(optimizer)\n    scaler.update()\n", "    optimizer.step()\n"
    )
    script.write_text(text)
    patch = step_by_scaler(at(script, "optimizer.step"), at(script, "scaler.scale"))
    assert "    scaler.step(optimizer)\n    scaler.update()\n" in patched(script, patch)


def test_a_second_step_after_the_scaler_is_left_out(script: Path) -> None:
    script.write_text(LOOP + "    optimizer.step()\n")
    patch = leave_out_step(at(script, "optimizer.step()"))
    assert patched(script, patch) == LOOP


def test_an_optimizer_is_given_to_prepare(script: Path) -> None:
    script.write_text("model, loader = accelerator.prepare(model, loader)\noptimizer.step()\n")
    patch = add_to_prepare(at(script, "step()"))
    text = patched(script, patch)
    assert "model, loader, optimizer = accelerator.prepare(model, loader, optimizer)\n" in text


def test_a_continue_of_an_inner_loop_is_not_the_loops_own(script: Path) -> None:
    text = LOOP.split("    if ", maxsplit=1)[0] + (
        "    for p in params:\n        if p.grad is None:\n            continue\n"
        "    scaler.step(optimizer)\n    scaler.update()\n"
    )
    script.write_text(text)
    assert update_before_continue(at(script, "scaler.scale")) == ""


def test_a_continue_that_shares_its_line_updates_the_scaler_there(script: Path) -> None:
    script.write_text(LOOP.replace("bad():\n        continue", "bad(): continue"))
    patch = update_before_continue(at(script, "scaler.scale"))
    wanted = "    if bad(): scaler.step(optimizer); scaler.update(); continue\n"
    assert wanted in patched(script, patch)


def test_a_step_that_shares_its_line_is_left_alone(script: Path) -> None:
    script.write_text("scaler.step(optimizer); optimizer.step()\n")
    assert not leave_out_step((str(script), 1))


@pytest.mark.parametrize(
    ("line", "patched_line"),
    [
        ("s = torch.amp.GradScaler()", "s = torch.amp.GradScaler(init_scale=1024.0)"),
        ("a = GradScaler(); b = GradScaler()", ""),
        ('s = GradScaler("cpu", 2.0**40)', ""),
        ('s = GradScaler("cpu")', 's = GradScaler("cpu", init_scale=1024.0)'),
        ("s = GradScaler(device)", "s = GradScaler(device, init_scale=1024.0)"),
        ("s = GradScaler(2.0**40)", ""),
    ],
)
def test_a_scaler_begins_with_a_scale_and_no_argument_is_given_twice(
    script: Path, line: str, patched_line: str
) -> None:
    script.write_text(f"{line}\n")
    patch = initial_scale((str(script), 1), 1024.0)
    assert bool(patch) == bool(patched_line)
    if patch:
        assert patched(script, patch) == f"{patched_line}\n"


def test_a_patch_that_needs_torch_imports_it(script: Path) -> None:
    script.write_text(
        "import os\nfrom models import build\n\nmodel = build()\nmodel = model.half()\n"
    )
    patch = fp32_weights(at(script, ".half()"), "float16")
    text = patched(script, patch)
    assert text.startswith("import os\nfrom models import build\nimport torch\n")
    assert text.count("import torch") == 1
    assert "model.forward = torch.autocast(" in text
