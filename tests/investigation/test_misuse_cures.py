"""Patches of calls that train wrongly, and of the loop around a backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from halfguard.investigation.made_places import MadePlaces
from halfguard.investigation.misuse import cures_of
from halfguard.investigation.passes import Made, Misused, MisuseKind, PassResult, Place
from tests.repairs.patched_script import at, first_pass, patched, write

LOOP = """
import torch
opt = torch.optim.SGD(p)
for x in data:
    with torch.autocast(device, dtype=torch.float16):
        loss = f(x)
    opt.zero_grad()
    scaler.scale(loss).backward()
    clip_grad_norm_(p, 1.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
"""


def mend(
    script: Path, kind: MisuseKind, place: Place, by: Place | None = None, made: Made | None = None
) -> str:
    """Return the script after the first patch of a misuse."""
    misused = Misused(kind=kind, sentence=f"wrong at {place[1]}", place=place, by=by, scale=1024.0)
    cures = cures_of(misused, PassResult(made=made or Made()))
    return patched(script, cures[0].patch) if cures else ""


@pytest.mark.parametrize(
    ("kind", "line", "by", "expected"),
    [
        ("clipped", "clip_grad", "", "    scaler.unscale_(opt)\n    clip_grad_norm_(p, 1.0)\n"),
        ("schedule", "sched.step", "", "scale_before = scaler.get_scale()\n    scaler.step(opt)\n"),
        ("penalty", "grads =", "", "[g / scaler.get_scale() for g in grad(scaler.scale(y), x)]"),
        ("scaler off", "other =", "", 'other = GradScaler("cpu")\n'),
        ("not scaled", "d_loss", "scaler.step", "scaler.scale(d_loss).backward()"),
        ("not scaled", "d_loss", "scaler.unscale_", "scaler.scale(d_loss).backward()"),
        ("other scaler", "other.scale", "scaler.step", "scaler.scale(fake).backward()"),
        ("not zeroed", "scaler.scale", "scaler.step", "scaler.update()\n    opt.zero_grad()\n"),
        ("rounded integers", "arange", "", "t = torch.arange(9).float()"),
    ],
)
def test_a_misuse_has_its_repair(
    script: Path, kind: MisuseKind, line: str, by: str, expected: str
) -> None:
    calls = 'other = GradScaler("cuda")\nt = torch.arange(9).half()\n'
    calls += "scaler.unscale_(opt)\nd_loss.backward()\nother.scale(fake).backward()\n"
    calls += "grads = grad(scaler.scale(y), x)\n"
    zeroless = LOOP.replace("    opt.zero_grad()\n", "")
    write(script, zeroless if kind == "not zeroed" else f"{LOOP}{calls}")
    found = mend(
        script, kind, at(script, line), at(script, by) if by else None, Made(autocast_device="cpu")
    )
    assert expected in found


def test_a_schedule_is_given_to_accelerate_and_the_line_is_named(script: Path) -> None:
    write(script, "m, opt = acc.prepare(m, opt)\nopt.step()\nsched.step()\n")
    misused = Misused(kind="schedule", sentence="It runs ahead.", place=at(script, "sched.step"))
    cure = cures_of(misused, PassResult())[0]
    assert "train.py:1: m, opt = acc.prepare" in cure.sentence
    assert patched(script, cure.patch).startswith("m, opt, sched = acc.prepare(m, opt, sched)\n")


def test_a_fused_optimizer_is_no_longer_fused(script: Path) -> None:
    write(script, "opt = AdamW(p, fused=True)\nsched.step()\n")
    made = Made(optimizer=(str(script), 1), fused=True)
    assert "AdamW(p, fused=False)" in mend(script, "schedule", at(script, "sched.step"), made=made)


def test_without_the_line_of_the_step_gradients_are_not_zeroed(script: Path) -> None:
    write(script, "for x in data:\n    f(x).backward()\n    opt.step()\n")
    assert not mend(script, "not zeroed", at(script, "backward"))


def test_a_step_of_another_function_is_not_taken(script: Path) -> None:
    write(
        script,
        """
        import torch
        opt = torch.optim.SGD(p)
        for x in data:
            def act():
                opt.step()
            f(x).backward()
        """,
    )
    made = Made(optimizer=at(script, "SGD"), autocast_device="cpu")
    assert not mend(script, "no scaler", at(script, "f(x).backward"), made=made)


@pytest.mark.parametrize("kind", ["lost updates", "bad buffer"])
@pytest.mark.parametrize(("cast", "dtype"), [("half", "float16"), ("bfloat16", "bfloat16")])
def test_weights_stay_in_fp32_under_autocast_of_their_dtype(
    script: Path, kind: MisuseKind, cast: str, dtype: str
) -> None:
    write(script, f"import torch\nnet = Net().{cast}()\nout = net(x.{cast}())\n")
    place = at(script, "Net")
    misused = Misused(kind=kind, sentence="!", place=place, dtype=dtype)
    under, without = cures_of(misused, PassResult(made=Made(half_weights=place)))
    before = script.read_text("utf-8")
    region = '"cuda" if torch.cuda.is_available() else "cpu"'
    assert patched(script, under.patch) == (
        "import torch\nnet = Net()\n"
        f"net.forward = torch.autocast({region}, dtype=torch.{dtype})(net.forward)\n"
        f"out = net(x.{cast}())\n"
    )
    script.write_text(before, "utf-8")
    assert patched(script, without.patch) == "import torch\nnet = Net()\nout = net(x)\n"


def test_a_buffer_of_a_frozen_module_stays_in_fp32(script: Path) -> None:
    write(script, "import torch\nteacher = Net().half()\n")
    text = mend(script, "bad buffer", at(script, "Net"))  # no weights that are trained are half
    assert "teacher = Net()\n" in text


WITHOUT_SCALER = """
import torch
opt = torch.optim.SGD(p)
for i, x in enumerate(data):
    with torch.autocast(device, dtype=torch.float16):
        loss = f(x)
    loss.backward()
{between}
"""


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (
            "    log(i)\n    clip_grad_norm_(p, 1.0)\n    opt.step()",
            "    scaler.unscale_(opt)\n    log(i)\n    clip_grad_norm_(p, 1.0)\n    scaler.step(opt)\n",
        ),
        (
            "    print(i)\n    for q in p:\n        q.grad.clamp_(-1, 1)\n    opt.step()",
            "    scaler.unscale_(opt)\n    print(i)\n    for q in p:\n        q.grad.clamp_(-1, 1)\n",
        ),
        (
            "    if i % 4 == 3:\n        nn.utils.clip_grad_value_(p, 1.0)\n        opt.step()",
            "        scaler.unscale_(opt)\n        nn.utils.clip_grad_value_(p, 1.0)\n",
        ),
        # It runs more often than the step.
        ("    clip_grad_norm_(p, 1.0)\n    if i % 4 == 3:\n        opt.step()", ""),
        ("    extra.backward()\n    opt.step()", ""),  # is not scaled
        ("    env.step()\n    print(i)", ""),  # is no optimizer
    ],
)
def test_gradients_of_a_new_scaler_are_unscaled_before_they_are_looked_at(
    script: Path, between: str, expected: str
) -> None:
    write(script, WITHOUT_SCALER.format(between=between))
    made = Made(optimizer=at(script, "SGD"), autocast=at(script, "autocast"), autocast_device="cpu")
    text = mend(script, "no scaler", at(script, "loss.backward"), made=made)
    assert (expected in text) if expected else not text


def test_an_error_that_was_hidden_is_mended_like_a_crash(script: Path) -> None:
    write(script, "try:\n    s.unscale_(opt)\n    s.step(opt)\nexcept Exception:\n    pass\n")
    error = "unscale_() has already been called on this optimizer since the last update()."
    misused = Misused(kind="hidden error", sentence="!", place=at(script, "unscale_"), error=error)
    cure = cures_of(misused, PassResult())[0]
    assert "unscale_" not in patched(script, cure.patch)


@pytest.mark.parametrize("kind", ["lost updates", "bad buffer", "hidden error"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", ""])
def test_weights_in_fp32_run_in_the_dtype_that_they_had(
    script: Path, kind: MisuseKind, dtype: str
) -> None:
    write(script, f"import torch\nnet = Net().to(torch.{dtype or 'float16'})\n")
    place, error = at(script, "Net"), "Attempting to unscale FP16 gradients."
    misused = Misused(kind=kind, sentence="!", place=place, error=error)
    cures = cures_of(misused, PassResult(made=Made(half_weights=place, half_dtype=dtype)))
    assert len(cures) == (2 if dtype else 1)
    text = patched(script, cures[0].patch)
    assert "net = Net()\n" in text
    assert (f"dtype=torch.{dtype})(net.forward)" in text) if dtype else "autocast" not in text


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.bfloat16, torch.bfloat16), "bfloat16"),
        ((torch.float16, torch.float32), "float16"),
        ((torch.float16, torch.bfloat16), ""),
        ((torch.float32,), ""),
    ],
)
def test_the_dtype_of_half_weights_is_known_if_they_have_one_in_common(
    dtypes: tuple[torch.dtype, ...], expected: str
) -> None:
    weights = [torch.zeros(2, dtype=dtype, requires_grad=True) for dtype in dtypes]
    made = MadePlaces(first_pass(Path("train.py"))).facts(torch.optim.SGD(weights, lr=0.1))
    assert made.half_dtype == expected
