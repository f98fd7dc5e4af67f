"""Compositions: recognized while a step runs, computed as a whole, and written into the source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from halfguard.repairs.source_file import SourceFile
from halfguard.repairs.stable_composition import patch_line
from halfguard.replaying.composition_rewrite import CompositionRewrite
from halfguard.replaying.function_modes import InFloat64
from tests.support.cases import each

Function = Callable[[Tensor], Tensor]


def log_of_sigmoid(x: Tensor) -> Tensor:
    p = torch.sigmoid(x)
    return torch.log(p + 1e-8)


def log_of_complement(x: Tensor) -> Tensor:
    return (1 - x.sigmoid()).clamp(min=1e-7).log()


def log_of_softmax(x: Tensor) -> Tensor:
    p = torch.softmax(x, dim=-1)
    return torch.log(p)


def log_of_one_plus_exp(x: Tensor) -> Tensor:
    grown = 1 + torch.exp(x)
    return grown.log()


def log1p_of_exp(x: Tensor) -> Tensor:
    return torch.log1p(x.exp())


def softmax_by_hand(x: Tensor) -> Tensor:
    powers = torch.exp(x)
    return powers / powers.sum(-1, keepdim=True)


def log_of_softmax_by_hand(x: Tensor) -> Tensor:
    powers = torch.exp(x)
    chance = powers / powers.sum(-1, keepdim=True)
    return torch.log(chance + 1e-8)


def log_of_sum_of_exp(x: Tensor) -> Tensor:
    return x.exp().sum(dim=-1).log()


def root_of_squares(x: Tensor) -> Tensor:
    total = (x * x).sum(-1)
    return total.sqrt()


def unit(x: Tensor) -> Tensor:
    length = x.pow(2).sum(dim=-1, keepdim=True) ** 0.5
    return x / (length + 1e-8)


def unit_by_norm(x: Tensor) -> Tensor:
    unit: Tensor = x / x.norm(dim=-1, keepdim=True)
    return unit


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


CASES: list[tuple[Function, str, float, str]] = [
    (log_of_sigmoid, "log_sigmoid", -30.0, "return torch.nn.functional.logsigmoid(x.float())"),
    (log_of_complement, "log_sigmoid", 30.0, "return torch.nn.functional.logsigmoid(-x.float())"),
    (log_of_softmax, "log_softmax", 40.0, "return torch.log_softmax(x.float(), dim=-1)"),
    (log_of_one_plus_exp, "softplus", 40.0, "return torch.nn.functional.softplus(x.float())"),
    (log1p_of_exp, "softplus", 40.0, "return torch.nn.functional.softplus(x.float())"),
    (softmax_by_hand, "softmax", 40.0, "return torch.softmax(x.float(), -1)"),
    (log_of_softmax_by_hand, "log_softmax", 40.0, "return torch.log_softmax(x.float(), -1)"),
    (log_of_sum_of_exp, "log_sum_exp", 40.0, "return torch.logsumexp(x.float(), dim=-1)"),
    (root_of_squares, "root", 300.0, "return torch.linalg.vector_norm(x.float(), dim=-1)"),
    (unit, "unit_vector", 300.0, "return halfguard.ops.normalize(x, -1)"),
    (unit_by_norm, "unit_vector", 40000.0, "unit: Tensor = halfguard.ops.normalize(x, -1)"),
    (rms, "rms_norm", 300.0, "return halfguard.ops.rms_norm(x, eps=1e-6)"),
]


def rewritten(fn: Function, x: Tensor, *, meaning: bool = False) -> tuple[Tensor, set[str]]:
    mode = CompositionRewrite(lambda _: True, meaning=meaning)
    with mode:
        result = fn(x)
    return result, {found.composition.kind for found in mode.found}


@each(("fn", "kind", "value", "line"), CASES)
def test_a_composition_is_finite_in_half_and_agrees_with_its_meaning_in_float64(
    fn: Function, kind: str, value: float, line: str
) -> None:
    x = torch.tensor([[value, value / 2, -1.0, 0.5]], dtype=torch.float16)
    result, kinds = rewritten(fn, x)
    assert kind in kinds
    mode = CompositionRewrite(lambda _: True, meaning=True)
    with InFloat64(), mode:
        right = fn(x)
    assert right.dtype is torch.float64
    assert result.isfinite().all()
    torch.testing.assert_close(result.double(), right, rtol=2e-3, atol=1e-6)


@each(("fn", "kind", "value", "line"), CASES)
def test_the_source_is_rewritten_across_assignments(
    fn: Function, kind: str, value: float, line: str
) -> None:
    file = SourceFile.read(__file__)
    assert file is not None
    function = file.function_at(fn.__code__.co_firstlineno)
    assert function is not None
    lines = [statement.lineno for statement in function.body]
    assert any(patch_line(file, number) for number in reversed(lines))
    assert f"+    {line}" in file.patch().splitlines()


@each(
    "body",
    [
        "p = torch.sigmoid(x)\n    x = x + 1\n    return torch.log(p)",  # x has changed since
        "p = torch.sigmoid(x)\n    p = p * 2\n    return torch.log(p)",
        "x = torch.sigmoid(x)\n    return torch.log(x)",
        "return torch.log(p)",  # an argument
        "return torch.log(torch.softmax(x))",  # no dimension
        "return y / x.norm(dim=-1, keepdim=True)",  # not its own norm
    ],
)
def test_what_is_not_certain_is_not_rewritten(body: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\n\ndef f(x, y, p):\n    {body}\n")
    file = SourceFile.read(str(path))
    assert file is not None
    assert not patch_line(file, 3 + body.count("\n") + 1)


def test_logits_that_call_a_model_are_computed_once(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n\ndef f(model, x):\n    p = torch.sigmoid(model(x))\n    return -torch.log(p).mean()\n"
    )
    file = SourceFile.read(str(path))
    assert file is not None
    assert patch_line(file, 5)
    added = [line for line in file.patch().splitlines() if line.startswith("+ ")]
    assert added == [
        "+    logits = model(x)",
        "+    p = torch.sigmoid(logits)",
        "+    return -torch.nn.functional.logsigmoid(logits.float()).mean()",
    ]


def test_a_vector_of_zeros_has_a_gradient() -> None:
    """FP32 as written has NaN there: the meaning is the reference."""
    x = torch.zeros(1, 4, requires_grad=True)
    result, kinds = rewritten(root_of_squares, x)
    assert kinds == {"root"}
    result.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_other_numbers_are_no_epsilon() -> None:
    x = torch.tensor([[0.5, -1.0, 2.0, 0.1]])
    with CompositionRewrite(lambda _: True) as mode:
        assert torch.equal(torch.log(x.sigmoid() + 0.5), (x.sigmoid() + 0.5).log())
        _ = torch.log(x.exp() + 2)
    assert mode.found == []
