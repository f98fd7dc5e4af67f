"""What holds for every operation: autocast, no host sync, fake tensors, one graph, a reference."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from benchmarks.ops import references
from benchmarks.ops.references import UNARY
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from halfguard import ops
from tests.support.cases import each_case
from tests.support.counting import OpCounter
from tests.support.devices import chosen_device, host_waits

from .helper import DTYPES, HALF

pytestmark = pytest.mark.usefixtures("device")

Loss = Callable[[Tensor, Tensor], Tensor]


def _labels(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) - 1


def _total(x: Tensor) -> Tensor:
    """Add up a result in its own dtype; a GPU's autocast would add in float32."""
    with torch.autocast(x.device.type, enabled=False):
        return x.sum()


# Every public function as a scalar of two float matrices, so that one loop can drive them all.
SCALARS: dict[str, Loss] = {
    **{unary.name: lambda x, y, op=unary.op: _total(op(x * y)) for unary in UNARY},  # type: ignore[misc]
    "div": lambda x, y: _total(ops.div(x, y)),
    "masked_softmax": lambda x, y: _total(ops.masked_softmax(x, y > 0) * y),
    "normalize": lambda x, y: _total(ops.normalize(x) * y),
    "cosine_similarity": lambda x, y: _total(ops.cosine_similarity(x, y)),
    "rms_norm": lambda x, y: _total(ops.rms_norm(x, y[0])),
    "cross_entropy": lambda x, y: ops.cross_entropy(x, _labels(x), -1),
    "binary_cross_entropy": lambda x, y: ops.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bpr_loss": ops.bpr_loss,
    "distillation_loss": lambda x, y: (
        ops.distillation_loss(
            x, y, _labels(x), temperature=2.0, kd_weight=1.0, ce_weight=1.0, ignore_index=-1
        ).total
    ),
}
FUNCTIONS = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
every_op = pytest.mark.parametrize("name", SCALARS)


def matrices(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4, 6, generator=generator).to(dtype)
    return x.requires_grad_(), y.requires_grad_()


def test_every_public_function_is_driven() -> None:
    assert {name.partition("(")[0] for name in SCALARS} == FUNCTIONS


def test_every_operation_has_a_reference() -> None:
    for name in FUNCTIONS:
        assert hasattr(references, f"{name}_reference"), name


@pytest.mark.on_standin
def test_no_host_sync(device: torch.device) -> None:
    with each_case() as case:
        for name, dtype in itertools.product(SCALARS, DTYPES):
            with case((name, dtype)):
                x, y = matrices(dtype)
                with OpCounter() as counter:
                    _backward(name, x, y)
                assert counter.host_syncs == 0
                if device.type != "cpu":
                    assert host_waits(partial(_backward, name, x, y)) == {}
    with OpCounter() as control:
        torch.ones(1).item()
    assert control.host_syncs == 1


def _backward(name: str, x: Tensor, y: Tensor) -> None:
    torch.autograd.backward(SCALARS[name](x, y))


@every_op
def test_fake_tensors(name: str) -> None:
    for dtype in DTYPES:
        with FakeTensorMode():
            x = torch.empty(4, 6, dtype=dtype, requires_grad=True)
            y = torch.empty(4, 6, dtype=dtype, requires_grad=True)
            value = SCALARS[name](x, y)
            torch.autograd.backward(value)
            assert value.shape == ()
            assert x.grad.dtype is dtype


@every_op
def test_autocast_changes_nothing(name: str) -> None:
    for autocast, dtype in itertools.product(HALF, DTYPES):
        plain, inside = matrices(dtype), matrices(dtype)
        expected = SCALARS[name](*plain)
        with torch.autocast(chosen_device().type, dtype=autocast):
            value = SCALARS[name](*inside)
        torch.autograd.backward((expected, value))
        assert value.dtype is expected.dtype
        assert torch.equal(value, expected), (autocast, dtype)
        assert plain[0].grad is not None
        assert inside[0].grad is not None
        assert torch.equal(inside[0].grad, plain[0].grad), (autocast, dtype)


# Dynamo, tracing any autograd.Function, trips over torch's own warning about instantiating one.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@every_op
def test_one_graph(name: str) -> None:
    plain, compiled = matrices(torch.float16), matrices(torch.float16)
    torch.compiler.reset()
    graph = torch.compile(SCALARS[name], fullgraph=True, backend="aot_eager", dynamic=False)
    expected, value = SCALARS[name](*plain), graph(*compiled)
    torch.autograd.backward((expected, value))
    assert torch.equal(value, expected)
    assert plain[0].grad is not None
    assert compiled[0].grad is not None
    torch.testing.assert_close(compiled[0].grad, plain[0].grad)
