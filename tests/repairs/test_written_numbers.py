"""What is written into a tensor is cast, a step without gradients left out, a layer of each block in FP32."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.repairs.casts import cast_source
from halfguard.repairs.fp32_weights import island
from halfguard.repairs.settings import add_keyword
from halfguard.repairs.steps import step_with_gradients
from tests.repairs.patched_script import at, patched, write


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("agg.index_add_(0, col, m)", "agg.index_add_(0, col, m.to(agg.dtype))"),
        (
            "out = out.scatter_add(0, i, a * b)",
            "out = out.scatter_add(0, i, (a * b).to(out.dtype))",
        ),
        ("x.scatter_(0, i, src=f(y))", "x.scatter_(0, i, src=f(y).to(x.dtype))"),
        ("x.index_put_((i,), y[0])", "x.index_put_((i,), y[0].to(x.dtype))"),
        ("out[rows] = f(x)", "out[rows] = f(x).to(out.dtype)"),
        ("make()[rows] = f(x)", ""),
        ("make().index_add_(0, col, m)", ""),  # it would be made twice
        ("x.add_(y)", ""),
    ],
)
def test_what_is_written_is_cast_to_the_dtype_of_its_target(
    script: Path, line: str, expected: str
) -> None:
    write(script, f"{line}\n")
    patch = cast_source(at(script, line))
    assert (patched(script, patch) if patch else "") == (f"{expected}\n" if expected else "")


def test_a_step_without_gradients_is_left_out(script: Path) -> None:
    write(script, "for opt in opts:\n    scaler.step(opt)\nscaler.update()\n")
    text = patched(script, step_with_gradients(at(script, "step")))
    assert (
        '    if any(p.grad is not None for g in opt.param_groups for p in g["params"]):\n' in text
    )
    assert "        scaler.step(opt)\n" in text
    assert not step_with_gradients(at(script, "update"))


def test_every_layer_of_a_list_is_an_island(script: Path) -> None:
    write(script, "import torch\nmodel = Net()\n")
    text = patched(script, island(at(script, "Net"), "blocks.*.norm"))
    loop = 'for layer in model.get_submodule("blocks"):\n'
    assert f'{loop}    halfguard.fp32_island(layer.get_submodule("norm"))\n' in text


def test_a_keyword_is_added_to_the_only_call_of_a_function(script: Path) -> None:
    write(script, "ctc = nn.CTCLoss(blank=0)\nctc = nn.CTCLoss()\n")
    names = ("CTCLoss", "ctc_loss")
    patch = add_keyword((str(script), 1), "zero_infinity", "True", names)
    assert "nn.CTCLoss(blank=0, zero_infinity=True)\nctc = nn.CTCLoss()" in patched(script, patch)
