"""Loops that a sensor must not blame, and those beside them that it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.investigation.passes import PassResult
from tests.investigation.command import run_one_pass

pytestmark = pytest.mark.slow

START = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
other = torch.amp.GradScaler("cpu", init_scale=4.0)
x, y = torch.randn(64, 16), torch.randn(64, 1)


def loss_of(a=x, b=y):
    with torch.autocast("cpu", dtype=torch.float16):
        return nn.functional.mse_loss(model(a).float(), b)


"""


def sense(folder: Path, lines: str) -> PassResult:
    """Run the first pass of a script, and return its answer."""
    return run_one_pass(f"{START}{lines.strip()}\n", folder)


def kinds(folder: Path, body: str) -> set[str]:
    """Return what a loop with this body is blamed for."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    result = sense(folder, f"for step in range(12):\n{lines}")
    assert not result.error
    assert result.event is None
    assert result.backward >= 12
    return {one.kind for one in result.misuse}


TWO = (
    "if not step:\n    first, last = (torch.optim.SGD(model[i].parameters(), lr=1e-4) for i in (0, 2))\n"
    "opt.zero_grad()\nscaler.scale(loss_of()).backward()\n"
)
STEP = "scaler.step(opt)\nscaler.update()\n"
HEALTHY = {
    "a norm of the scaled loss": (
        "opt.zero_grad()\nscaled = scaler.scale(loss_of())\n"
        "torch.autograd.grad(scaled, model[2].weight, retain_graph=True)\nscaled.backward()\n"
        + STEP
    ),
    "parts that are scaled before the first backward pass": (
        "opt.zero_grad()\nparts = [scaler.scale(loss_of(x[k:], y[k:])) / 2 for k in (0, 32)]\n"
        "for part in parts:\n    part.backward()\n" + STEP
    ),
    "a penalty beside a scaled loss": (
        "opt.zero_grad()\nscaled = scaler.scale(loss_of())\n"
        "mix = x.clone().requires_grad_()\n"
        "grad = torch.autograd.grad(model(mix).sum(), mix, create_graph=True)[0]\n"
        "(scaled + scaler.scale((grad.norm(dim=1) - 1).square().mean())).backward()\n" + STEP
    ),
    "a sum of two scalers": (
        "opt.zero_grad()\nloss = loss_of()\n"
        "(scaler.scale(loss) + 0 * other.scale(loss)).backward()\n" + STEP
    ),
    "a loss that is added after unscaling": (
        "opt.zero_grad()\nscaler.scale(loss_of()).backward()\nscaler.unscale_(opt)\n"
        "(0.01 * model[0].weight.square().sum()).backward()\n" + STEP
    ),
    "gradients that are zeroed by hand": (
        "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.data.zero_()\n"
        "scaler.scale(loss_of()).backward()\n" + STEP + "model(x).mean().backward()\n"
    ),
    "gradients that fade": (
        "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)\n"
        "loss_of().backward()\nopt.step()\n"
    ),
    "a loss that is scaled by hand": (
        "opt.zero_grad()\nscaler.scale(0 * loss_of())\n(loss_of() * scaler.get_scale()).backward()\n"
        + STEP
    ),
    "gradients that are scaled by hand": (
        "opt.zero_grad()\nloss = loss_of()\nfactor = scaler.scale(0 * loss + 1).detach()\n"
        "loss.backward(factor)\n" + STEP
    ),
    "a scale that is read once": (
        "if not step:\n    scaler.scale(torch.ones(()))\n    factor = scaler.get_scale()\n"
        "opt.zero_grad()\n(factor * loss_of()).backward()\n" + STEP
    ),
    "a scaled number that is kept": (
        "if not step:\n    factor = scaler.scale(torch.ones(()))\n"
        "opt.zero_grad()\n(factor * loss_of()).backward()\n" + STEP
    ),
    "a second optimizer that divides its gradients itself": (
        TWO + "scaler.step(first)\n"
        "for p in model[2].parameters():\n    p.grad /= 1024\nlast.step()\nscaler.update()\n"
    ),
    "clipping of parameters that another optimizer has unscaled": (
        TWO + "scaler.unscale_(opt)\nnn.utils.clip_grad_norm_(model.parameters(), 1e-3)\n" + STEP
    ),
    "a second optimizer whose loss is not scaled": (
        "if not step:\n    weight = nn.Parameter(torch.ones(2))\n    apart = torch.optim.SGD([weight])\n"
        "opt.zero_grad()\napart.zero_grad()\nmodel(x)[0].sum().backward()\n"
        "other.scale(weight.sum()).backward()\nopt.step()\nother.step(apart)\nother.update()\n"
    ),
    "a new scaler for every model": (
        "new = torch.amp.GradScaler('cpu', init_scale=2.0 ** (120 * (step % 2)))\n"
        "weight = nn.Parameter(torch.ones(1))\n"
        "new.scale(1e30 * weight.sum()).backward()\nnew.step(torch.optim.SGD([weight]))\nnew.update()\n"
    ),
    "a second unscaling, that a helper hides": (
        "opt.zero_grad()\nscaler.scale(loss_of()).backward()\nscaler.unscale_(opt)\n"
        "try:\n    scaler.unscale_(opt)\nexcept RuntimeError:\n    pass\n" + STEP
    ),
}
WRONG = {
    "gradients that are never zeroed": (
        "scaler.scale(loss_of()).backward()\n" + STEP,
        "not zeroed",
    ),
    "a plain loss before unscaling": (
        "opt.zero_grad()\nscaler.scale(loss_of()).backward()\nloss_of().backward()\n"
        "scaler.unscale_(opt)\n" + STEP,
        "not scaled",
    ),
    "a scaler that is given no loss": (
        "if not step:\n    scaler.scale(torch.ones(()))\nopt.zero_grad()\nloss_of().backward()\n"
        + STEP,
        "not scaled",
    ),
    "an error that leaves out the step": (
        (
            "opt.zero_grad()\nscaler.scale(loss_of()).backward()\n"
            "try:\n    scaler.unscale_(opt)\n    scaler.unscale_(opt)\n    scaler.step(opt)\n"
            "except RuntimeError:\n    pass\n"
        ),
        "hidden error",
    ),
    "a loss that is not scaled, beside one that is": (
        "opt.zero_grad()\n(scaler.scale(loss_of()) / 2).backward()\nloss_of().backward()\n" + STEP,
        "not scaled",
    ),
    "a second optimizer without the scaler": (
        TWO + "scaler.step(first)\nlast.step()\nscaler.update()\n",
        "raw step",
    ),
    "a second step, besides that of the scaler": (
        "opt.zero_grad()\nscaler.scale(loss_of()).backward()\nscaler.step(opt)\nopt.step()\nscaler.update()",
        "second step",
    ),
    "clipping of one of two optimizers": (
        TWO + "scaler.unscale_(first)\nnn.utils.clip_grad_norm_(model[2].parameters(), 1e-3)\n"
        "scaler.step(first)\nscaler.step(last)\nscaler.update()\n",
        "clipped",
    ),
    "a new scaler in every step": (
        (
            "opt.zero_grad()\nnew = torch.amp.GradScaler('cpu', init_scale=2.0 ** (40 * (step % 2)))\n"
            "new.scale(loss_of()).backward()\nnew.step(opt)\nnew.update()\n"
        ),
        "new scaler",
    ),
    "another scaler": (
        "opt.zero_grad()\nother.scale(loss_of()).backward()\n"
        "scaler.scale(loss_of()).backward()\n" + STEP,
        "other scaler",
    ),
}


SHARDED = """
import tempfile
import torch.distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

store = dist.FileStore(tempfile.mkdtemp() + "/store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
scaler = ShardedGradScaler(device="cpu", init_scale=2.0**16)
for step in range(30):
    opt.zero_grad()
    scaler.scale(500 * loss_of()).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""


def test_the_scaler_of_fsdp_is_known(tmp_path: Path) -> None:
    result = sense(tmp_path, SHARDED)
    assert (result.error, result.event, result.misuse) == ("", None, ())
    assert result.scaler.used


FREED = """
def train():
    import weakref

    scaler = torch.amp.GradScaler("cpu")
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 10))
    for step in range(45):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            hidden = model[:2](x)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 500 * nn.functional.mse_loss(model[2](hidden).float(), y)
        (scaler.scale(loss) / 2).backward()
        seen = weakref.ref(hidden), weakref.ref(loss)
        del hidden, loss
        assert [one() for one in seen] == [None, None], step
        scaler.step(opt)
        scaler.update()
        schedule.step()


train()
"""


def test_what_the_script_deletes_is_freed_and_a_scale_finds_its_level(tmp_path: Path) -> None:
    result = sense(tmp_path, FREED)
    assert (result.error, result.event, result.misuse) == ("", None, ())
    assert result.scaler.skips >= 5


BUFFERS = """
model.register_buffer("best", torch.tensor(float("inf")).bfloat16())
model.register_buffer("mean", torch.zeros(2).half())
for step in range(5):
    opt.zero_grad()
    loss_of().backward()
    opt.step()
"""


@pytest.mark.parametrize("grows", [False, True])
def test_a_buffer_that_is_infinite_from_the_start_is_not_blamed(
    tmp_path: Path, grows: bool
) -> None:
    grown = "    model.mean += 2.0**15\n" if grows else ""
    result = sense(tmp_path, BUFFERS + grown)
    assert [one.kind for one in result.misuse] == ["bad buffer"] * grows
    assert all("mean of Sequential" in one.sentence for one in result.misuse)


def test_a_scale_that_is_no_float_is_an_error_of_the_script(tmp_path: Path) -> None:
    lines = "loss_of().backward()\nopt.step()\n"
    lines += "torch.amp.GradScaler('cpu', init_scale=2.0**140).scale(loss_of())\n"
    result = sense(tmp_path, lines)
    assert (result.ended, result.event.kind) == ("crashed", "exception")
    assert "without overflow" in result.error


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_loop_is_not_blamed(tmp_path: Path, name: str) -> None:
    assert kinds(tmp_path, HEALTHY[name]) == set()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_blamed(tmp_path: Path, name: str) -> None:
    body, kind = WRONG[name]
    assert kinds(tmp_path, body) == {kind}
