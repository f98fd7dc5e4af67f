"""Crashes by errors of torch: the line that they go back to, and a patch that was run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from halfguard.investigation.misuse import Crash, crash_place
from halfguard.investigation.passes import Made
from halfguard.repairs.applying import apply_patch
from halfguard.report.markdown import to_markdown
from halfguard.report.script_answer import script_answer_page
from tests.investigation.command import SCRIPTS, ask, ask_about, why


def crash(error: str, **made: tuple[str, int]) -> Crash:
    return Crash(error, None, Made(**made))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("ValueError: Attempting to unscale FP16 gradients.", "needs FP32 weights"),
        ("AssertionError: No inf checks were recorded for this optimizer.", "create the optimizer last"),
        ("AssertionError: No inf checks were recorded prior to update.", "scaler.step()"),
        ("RuntimeError: unscale_() has already been called on this optimizer since", "once per step"),
        ("RuntimeError: unscale_() is being called after step().", "scaler.update() after every step"),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half", "autocast"),
        ("RuntimeError: value cannot be converted to type c10::Half without overflow", "-65504"),
        ("NotImplementedError: \"ctc_loss_cpu\" not implemented for 'Half'", "ctc_loss_cpu for Half"),
        ("TypeError: Got unsupported ScalarType BFloat16", "NumPy has no bfloat16"),
        ("IndexError: Target 7 is out of bounds.", "Number the labels from 0"),
        ("RuntimeError: Input type (float) and bias type (c10::Half) should be the same", "autocast"),
    ],
)  # fmt: skip
def test_a_known_error_is_explained(error: str, told: str) -> None:
    assert told in crash(error).advice


NO_GRADIENTS = "AssertionError: No inf checks were recorded for this optimizer."


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("    loss = torch.tensor(value, requires_grad=True)", True),
        ("    loss = mean.detach().requires_grad_()", True),
        ("    loss.requires_grad = True", True),
        ("    loss = sum(losses)", False),
    ],
)
def test_a_loss_without_a_graph_is_named(tmp_path: Path, line: str, named: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"for batch in data:\n{line}\n    scaler.scale(loss).backward()\n", "utf-8")
    made = Made(leaf_loss=True, scaling=(str(script), 3), optimizer=(str(script), 1))
    found = Crash(NO_GRADIENTS, (str(script), 3), made)
    assert found.code == "HD107"
    assert (f"made at {script}:2" in found.advice) == named
    connected = Crash(NO_GRADIENTS, (str(script), 3), made.model_copy(update={"leaf_loss": False}))
    assert connected.code == "HD106"


REBUILT = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        value = model(torch.ones(2, 4)).float().mean()
    loss = torch.zeros((), requires_grad=True)
    loss.data += value.item()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_a_run_with_a_loss_without_a_graph(tmp_path: Path) -> None:
    answer = ask_about(REBUILT, tmp_path)
    assert answer.code == "HD107"
    assert "train.py:10:" in answer.advice


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float",
        "RuntimeError: value cannot be converted to type uint8_t without overflow",
    ],
)
def test_other_dtypes_are_not_blamed_on_half(error: str) -> None:
    assert crash(error).advice == ""


def test_half_weights_are_blamed_for_mixed_dtypes_only_if_there_are_some() -> None:
    error = "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
    assert crash(error).advice.startswith("A 16-bit tensor was combined")
    half = crash(error, half_weights=("train.py", 3))
    assert half.advice.startswith("16-bit weights were combined")


FUNCTION = """
import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad
"""


@pytest.mark.parametrize(("line", "inside"), [(14, True), (9, False)])
def test_dtypes_that_meet_in_the_backward_pass_of_a_custom_function(
    line: int, inside: bool, tmp_path: Path
) -> None:
    file = tmp_path / "ops.py"
    file.write_text(FUNCTION)
    error = (
        "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16"
    )
    found = Crash(error, (str(file), line), Made())
    assert ("custom_bwd" in found.advice) is inside
    patches = "".join(cure.patch for cure in found.cures())
    assert ("+    @torch.amp.custom_fwd(" in patches) is inside


def test_an_error_of_the_script_itself_is_not_explained() -> None:
    one = crash("KeyError: 'labels'", half_weights=("train.py", 3))
    assert one.advice == ""
    assert one.cures() == []


def test_the_innermost_line_of_the_user_is_found() -> None:
    log = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    main()
  File "/home/me/train.py", line 5, in main
    scaler.step(opt)
  File "/usr/lib/python3/site-packages/torch/amp/grad_scaler.py", line 476, in step
    raise AssertionError("...")
"""
    assert crash_place(log, [Path("/home/me")]) == ("/home/me/train.py", 5)
    assert crash_place(log, [Path("/home/m")]) is None
    inside = log.replace("/usr/lib/python3", "/home/me/.venv/lib")
    assert crash_place(inside, [Path("/home/me")]) == ("/home/me/train.py", 5)
    assert crash_place("no traceback", [Path("/home/me")]) is None


@pytest.mark.slow
def test_half_weights_with_a_scaler_get_a_patch_that_trains(tmp_path: Path) -> None:
    answer = ask("half_weights_scaler.py", tmp_path)
    assert answer.outcome == "crashed"
    assert "half_weights_scaler.py:5: model = model.half()" in answer.cure.sentence
    assert "-model = model.half()" in answer.cure.patch
    assert answer.trials[-1].good
    assert "needs FP32 weights" in to_markdown(script_answer_page(answer))


@pytest.mark.slow
def test_an_operation_without_a_half_kernel_gets_fp32_arguments(tmp_path: Path) -> None:
    answer = ask("half_ctc.py", tmp_path)
    assert answer.outcome == "crashed"
    assert "half_ctc.py:11" in answer.cure.sentence
    assert "+    loss = criterion(log_probabilities.float(), text," in answer.cure.patch
    assert answer.trials[-1].good


@pytest.mark.slow
def test_a_patch_is_printed_and_saved_as_patch_takes_it(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "half_weights_scaler.py", tmp_path / "train.py")
    done = why("--patch", "fix.patch", "train.py", cwd=tmp_path, COLUMNS="60")
    saved = (tmp_path / "fix.patch").read_text("utf-8")
    assert saved in done.stdout
    assert max(map(len, saved.splitlines())) > 60  # wrapped, it would not fit the source
    assert apply_patch(saved, tmp_path)
    assert "model = model.half()" not in (tmp_path / "train.py").read_text("utf-8")
