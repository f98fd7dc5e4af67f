"""The bound on errors: tight enough to tell half from FP32, wide enough for correct results."""

from __future__ import annotations

from itertools import product

import torch

from halfguard.acceptance.autocast_call import Call, Reference, calls_of, first_tensor
from halfguard.acceptance.error_bound import condition
from halfguard.acceptance.operations import SAMPLES, operation, replace_tensors
from halfguard.autocast_ops import RULES, AutocastRule
from tests.support.cases import each

FULL, HALF = torch.float32, torch.float16


def test_every_listed_operation_has_a_sample() -> None:
    assert SAMPLES.keys() == RULES.keys()
    assert sum(len(calls_of(name)) for name in RULES) == 520


def test_the_condition_is_the_sum_of_absolute_slopes_times_inputs() -> None:
    x = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([3.0, 1.0], dtype=torch.float64, requires_grad=True)
    found = condition(torch.stack([x @ y, (x * y)[0]]), [x, y])
    assert torch.equal(found, torch.tensor([2 * (1.5 + 2.0), 2 * 1.5], dtype=torch.float64))


@each("name", ["exp", "log", "layer_norm", "mse_loss", "cdist", "logsumexp"])
def test_a_result_that_was_computed_in_half_is_far_outside(name: str) -> None:
    call, reference = Call(name, (FULL, FULL), HALF), Reference(name)
    arguments = reference.arguments(call)
    correct = first_tensor(operation(name)(*arguments))
    assert reference.error(call, correct, torch.device("cuda")) <= 1
    rounded = replace_tensors(arguments, lambda x: x.half().float() if x.is_floating_point() else x)
    in_half = first_tensor(operation(name)(*rounded)).half().float()
    assert reference.error(call, in_half, torch.device("cuda")) > 8


def test_a_transposed_convolution_may_add_its_columns_in_half_on_a_cpu() -> None:
    name = "conv_transpose2d.input"
    call, reference = Call(name, (HALF, HALF), HALF), Reference(name)
    x, weight = reference.arguments(call)[:2]
    out = torch.zeros(1, 2, 5, 5, dtype=HALF)
    for i, j in product(range(3), range(3)):
        column = torch.einsum("bchw,cd->bdhw", x.float(), weight[:, :, i, j].float()).half()
        out[:, :, i : i + 3, j : j + 3] += column
    assert reference.error(call, out, torch.device("cpu")) <= 1
    off_by_two_percent = (out.float() * 1.02).half()
    assert reference.error(call, off_by_two_percent, torch.device("cpu")) > 1


def test_nan_is_an_infinite_error() -> None:
    call, reference = Call("exp", (FULL, FULL), HALF), Reference("exp")
    result = first_tensor(operation("exp")(*reference.arguments(call)))
    result[0, 0] = torch.nan
    assert reference.error(call, result, torch.device("cuda")) == float("inf")


def test_the_dtypes_of_a_call_follow_its_rule() -> None:
    assert Call("mm", (FULL, FULL), HALF).computed_in is HALF
    assert Call("exp", (HALF, HALF), HALF).computed_in is FULL
    assert Call("dot", (HALF, FULL), HALF).computed_in is FULL
    assert Call("dot", (HALF, HALF), HALF).computed_in is HALF
    summed = Call("sum", (HALF, HALF), HALF)
    assert (summed.computed_in, summed.returned_in, summed.must_cast) == (HALF, FULL, False)
    assert RULES["binary_cross_entropy"] is AutocastRule.BANNED
