"""Function modes pass on every argument of a backward pass, and stay on inside of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from halfguard.replaying.composition_rewrite import CompositionRewrite
from halfguard.replaying.fp32_lines import StatementsInFP32
from halfguard.replaying.function_modes import InFloat64, name_lines
from halfguard.replaying.process_in_fp32 import FP32Arguments
from halfguard.replaying.substitution import StableSubstitution

MODES: list[Callable[[], TorchFunctionMode]] = [
    lambda: StableSubstitution([]),
    lambda: StatementsInFP32([]),
    lambda: CompositionRewrite(lambda _: False),
    InFloat64,
]


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def gradient(x: Tensor) -> list[float]:
    assert x.grad is not None
    return [float(number) for number in x.grad]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("mode", MODES)
def test_every_argument_of_a_backward_pass_is_passed_on(
    mode: Callable[[], TorchFunctionMode],
) -> None:
    x, w = leaf(1, 2), leaf(3, 4)
    with mode():
        (x * 2).backward(torch.tensor([10.0, 100.0]))
    assert gradient(x) == [20, 200]
    x.grad = None

    with mode():
        loss = (x * x * w).sum()
        loss.backward(retain_graph=True, inputs=[x])
    assert (gradient(x), w.grad) == ([6, 16], None)
    with mode():
        loss.backward(inputs=w)  # the graph was retained
    assert gradient(w) == [1, 4]
    with mode(), pytest.raises(RuntimeError, match="second time"):
        loss.backward()

    with mode():
        (w * w).sum().backward(create_graph=True, inputs=[w])
    assert w.grad.requires_grad
    w.grad = None  # break the cycle


@pytest.mark.parametrize("mode", MODES)
def test_several_losses_have_their_own_gradients(mode: Callable[[], TorchFunctionMode]) -> None:
    x = leaf(1, 2)
    with mode():
        torch.autograd.backward([x.sum(), x * 3], [None, torch.tensor([1.0, 10.0])])
    assert gradient(x) == [4, 31]


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_of_several_numbers_needs_a_gradient(mode: Callable[[], TorchFunctionMode]) -> None:
    with mode(), pytest.raises(RuntimeError, match="only for scalar outputs"):
        (leaf(1, 2) * 2).backward()
    with mode(), pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()


@pytest.mark.parametrize("arguments", [{}, {"inputs": True}, {"gradient": True}])
def test_a_mode_is_on_where_a_checkpoint_is_computed_again(arguments: dict[str, bool]) -> None:
    x, dtypes = leaf(1, 2), []

    def block(x: Tensor) -> Tensor:
        half = x.half()
        dtypes.append(half.dtype)
        return half.exp().sum()

    given = {"inputs": [x], "gradient": torch.ones(())}
    with InFloat64():
        loss = checkpoint(block, x, use_reentrant=False)
        loss.backward(**{name: given[name] for name in arguments})  # type: ignore[arg-type]
    assert dtypes == [torch.float64, torch.float64]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("mode", [*MODES, lambda: FP32Arguments({})])
def test_random_numbers_of_a_distribution_are_those_of_the_script(
    mode: Callable[[], TorchFunctionMode],
) -> None:
    """A distribution draws into ``rate.new(size)``; another kind of tuple would be values."""

    def draw() -> Tensor:
        torch.manual_seed(0)
        return torch.distributions.Exponential(torch.ones(5)).sample()

    expected = draw()
    with mode():
        drawn = draw()
    assert torch.equal(drawn.float(), expected)


def test_lines_are_named_file_by_file_and_in_order() -> None:
    places = [("/p/b.py", 46), ("/p/b.py", 39), ("/p/a.py", 3)]
    assert name_lines(places) == "b.py:39 and 46 and a.py:3"
