"""Patches of calls that train wrongly, and of the loop around a backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from halfguard.investigation.made_places import MadePlaces
from halfguard.investigation.misuse import cures_of
from halfguard.investigation.passes import Made, Misused, MisuseKind, PassResult, Place
from halfguard.repairs.masks import skip_bad_batch
from halfguard.repairs.scaling import loss_per_micro_batch
from halfguard.repairs.settings import anomaly_off
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


def test_gradients_are_unscaled_before_they_are_clipped(script: Path) -> None:
    write(script, LOOP)
    text = mend(script, "clipped", at(script, "clip_grad"))
    assert "    scaler.unscale_(opt)\n    clip_grad_norm_(p, 1.0)\n" in text


def test_accelerate_clips_what_it_has_prepared(script: Path) -> None:
    prepared = "m, opt = acc.prepare(m, opt)\nacc.backward(loss)\n"
    write(script, f"{prepared}torch.nn.utils.clip_grad_norm_(p, 1)\n")
    text = mend(script, "clipped", at(script, "clip_grad"))
    assert text == f"{prepared}acc.clip_grad_norm_(p, 1)\n"


def test_a_schedule_moves_with_the_steps(script: Path) -> None:
    write(script, LOOP)
    text = mend(script, "schedule", at(script, "sched.step"))
    assert "    scale_before = scaler.get_scale()\n    scaler.step(opt)\n" in text
    assert "    if scaler.get_scale() >= scale_before:\n        sched.step()\n" in text


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


def test_a_loss_is_scaled_by_the_scaler_that_steps(script: Path) -> None:
    write(script, "d_loss.backward()\nscaler_g.scale(fake).backward()\nscaler_d.step(opt_d)\n")
    by = at(script, "step")
    text = mend(script, "not scaled", at(script, "d_loss"), by)
    assert text.startswith("scaler_d.scale(d_loss).backward()\n")
    assert "scaler_d.scale(fake)" in mend(script, "other scaler", at(script, "fake"), by)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("g = grad(s.scale(loss), x)[0]", "g = grad(s.scale(loss), x)[0] / s.get_scale()"),
        ("(g,) = grad(s.scale(loss), x)", "(g,) = (grad(s.scale(loss), x)[0] / s.get_scale(),)"),
        ("gs = grad(s.scale(loss), x)", "gs = [g / s.get_scale() for g in grad(s.scale(loss), x)]"),
    ],
)
def test_gradients_of_a_penalty_are_unscaled(script: Path, line: str, expected: str) -> None:
    write(script, f"{line}\n")
    assert mend(script, "penalty", (str(script), 1)) == f"{expected}\n"


@pytest.mark.parametrize(
    ("given", "expected"), [('"cuda"', '"cpu"'), ("", 'device="cpu"'), ("device", "")]
)
def test_a_scaler_is_made_for_the_device_of_autocast(
    script: Path, given: str, expected: str
) -> None:
    write(script, f"scaler = torch.amp.GradScaler({given})\n")
    made = Made(autocast_device="cpu")
    text = mend(script, "scaler off", (str(script), 1), made=made)
    assert text == (f"scaler = torch.amp.GradScaler({expected})\n" if expected else "")


def test_gradients_are_zeroed_after_the_update_of_their_step(script: Path) -> None:
    write(script, LOOP.replace("    opt.zero_grad()\n", ""))
    text = mend(script, "not zeroed", at(script, "backward"), at(script, "scaler.step"))
    assert "    scaler.step(opt)\n    scaler.update()\n    opt.zero_grad()\n    sched" in text


def test_gradients_of_micro_batches_still_add_up(script: Path) -> None:
    write(
        script,
        """
        def train(model, opt):
            for batch in data:
                for part in batch:
                    model(part).backward()
                opt.step()
                print(batch)
        """,
    )
    text = mend(script, "not zeroed", at(script, "backward"), at(script, "opt.step"))
    assert "model(part).backward()\n        opt.step()\n        opt.zero_grad()\n" in text


@pytest.mark.parametrize(
    "line",
    [
        "env.step(action)",  # no scaler
        "env.step()",  # no optimizer
        "opt.step(closure)",
        "trainer.train()",
        "opt.step(); log()",
        "opt.step()\n    print(p.grad)",
        "opt.step()\n    if last:\n        opt.zero_grad()",
    ],
)
def test_gradients_are_not_zeroed_where_the_step_is_not_certain(script: Path, line: str) -> None:
    write(script, f"for x in data:\n    f(x).backward()\n    {line}\n")
    assert not mend(
        script, "not zeroed", at(script, "backward"), at(script, line.split("\n", maxsplit=1)[0])
    )


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


@pytest.mark.parametrize(
    ("cast", "expected"),
    [
        (".to(x.dtype)", ".float()"),
        (".half()", ".float()"),
        (".to(torch.bfloat16)", ".float()"),
        (".to(device).half()", ".to(device).float()"),
        (".half().to(x.device)", ".float().to(x.device)"),
        ('.to("cpu").to(x.dtype)', '.to("cpu").float()'),
        (".to(device, torch.float16)", ".to(device, torch.float32)"),
        (".to(device=d, dtype=x.dtype)", ".to(device=d, dtype=torch.float32)"),
    ],
)
def test_positions_stay_in_fp32(script: Path, cast: str, expected: str) -> None:
    write(script, f"t = torch.arange(a, b){cast}\n")
    text = mend(script, "rounded integers", (str(script), 1))
    assert text == f"t = torch.arange(a, b){expected}\n"


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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f(x.half()) + torch.arange(n).half()", "f(x.half()) + torch.arange(n).float()"),
        ("torch.arange(n).to(x.device).to(x.dtype)", "torch.arange(n).to(x.device).float()"),
        ("(torch.arange(n) + k).to(dev, x.dtype)", "(torch.arange(n) + k).to(dev, torch.float32)"),
        ("ids.half()", "ids.float()"),
        ("ids.to(dtype=torch.bfloat16)", "ids.float()"),
        ("rows.half() * x.half()", "rows.float() * x.half()"),
        ("ids.half() + x.half()", ""),  # which of them is not certain
        ("ids.to(x)", ""),
        ("ids.type_as(x).to(device)", ""),
        ("angles(torch.arange(n), x)", ""),  # is not cast on its line
    ],
)
def test_only_the_cast_of_whole_numbers_is_changed(script: Path, line: str, expected: str) -> None:
    head = "import torch\ndef f(x, ids, n):\n    rows = torch.arange(n)\n    return "
    write(script, f"{head}{line}\n")
    text = mend(script, "rounded integers", at(script, "return"))
    assert text == (f"{head}{expected}\n" if expected else "")


def test_micro_batches_become_a_mean(script: Path) -> None:
    write(script, "for m in range(ACC):\n    loss = f(m)\n    loss.backward()\nopt.step()\n")
    patch = loss_per_micro_batch(at(script, "backward"))
    assert "    (loss / ACC).backward()\n" in patched(script, patch)
    write(script, "for m in range(ACC):\n    loss.backward()\n    opt.step()\n")
    assert not loss_per_micro_batch(at(script, "backward"))


def test_detect_anomaly_is_switched_off(script: Path) -> None:
    write(script, "trainer = Trainer(detect_anomaly=True)\n")
    patch, places = anomaly_off.with_places((str(script), 0))
    assert places == [(str(script), 1)]
    assert patched(script, patch) == "trainer = Trainer(detect_anomaly=False)\n"


@pytest.mark.parametrize("head", ["for x in d:", "def step(x):"])
def test_a_line_that_hides_a_bad_loss_is_replaced_in_a_loop(script: Path, head: str) -> None:
    write(script, f"import torch\n{head}\n    loss = torch.nan_to_num(loss)\n    loss.backward()\n")
    patch = skip_bad_batch(at(script, "nan_to_num"))
    if head.startswith("def"):
        assert patch == ""
        return
    text = patched(script, patch)
    assert "nan_to_num" not in text
    assert "if not torch.isfinite(loss):\n        continue\n    loss.backward()" in text
