"""Products are weighed as torch's own counter does it, and told apart by where a gradient passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from halfguard.diagnosis.model.forward import Product, find_graph_leaves, loss_in, observe_forward
from tests.diagnosis.model.checks.helper import batch, loss, net
from tests.support.devices import device_type, place

pytestmark = pytest.mark.usefixtures("device", "seed")


def products(model: nn.Module, step: Any) -> list[Product]:
    seen = observe_forward(model, step, device_type())
    assert seen.error is None
    return seen.products


MODELS: dict[str, tuple[Any, Tensor]] = {
    "linear": (lambda: nn.Linear(4, 8), torch.ones(3, 4)),
    "batched": (lambda: nn.Linear(4, 8, bias=False), torch.ones(2, 3, 4)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, groups=2), torch.ones(2, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3), torch.ones(2, 4, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_work_is_what_torch_counts(name: str) -> None:
    build, x = MODELS[name][0], place(MODELS[name][1])
    model = build()
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert sum(p.flops for p in products(model, lambda: model(x))) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("operation", "multiplications"),
    [
        (lambda a: torch.mv(a, a[0]), 5 * 5),
        (lambda a: torch.addmv(a[0], a, a[0]), 5 * 5),
        (lambda a: torch.addbmm(a, a[None], a[None]), 5 * 5 * 5),
        # Queries with keys, and what comes of it with values: 3 tokens, 5 wide.
        (lambda a: nn.functional.scaled_dot_product_attention(*[a[None, None, :3]] * 3), 2 * 9 * 5),
    ],
)
def test_work_that_torch_does_not_count_on_a_cpu(operation: Any, multiplications: int) -> None:
    a = torch.ones(5, 5)
    found = products(nn.Identity(), lambda: operation(a))
    assert sum(product.flops for product in found) == pytest.approx(2 * multiplications)


def test_a_recurrent_layer_weighs_as_much_as_its_products_do() -> None:
    model, x = nn.LSTM(16, 16), torch.ones(4, 3, 16)
    exact = 2 * 2 * 4 * 3 * 16 * 4 * 16  # input and state, through four gates
    with torch.autocast(device_type(), torch.bfloat16):
        work = sum(p.flops for p in products(model, lambda: model(x)))
    assert exact / 4 < work < exact * 4


class Parts(nn.Module):
    """A frozen layer, one without gradients, and one within a reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.off, self.trained, self.again = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            x = self.off(self.frozen(x))
        return checkpoint(self.again, self.trained(x), use_reentrant=True)


@pytest.mark.parametrize("autocast", [False, True])
def test_what_a_gradient_passes_through(autocast: bool) -> None:
    model = Parts()
    with torch.autocast(device_type(), torch.bfloat16, enabled=autocast):
        seen = products(model, lambda: model(batch()))
    assert {p.module: p.passes_gradient for p in seen} == {
        "frozen": False,
        "off": False,
        "trained": True,
        "again": True,
    }
    model(batch()).sum().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {
        f"{name}.{kind}" for name in ("trained", "again") for kind in ("weight", "bias")
    }


class HalfLinear(torch.autograd.Function):
    """A product in FP16 with a gradient of its own, as fused kernels have it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (x.half() @ weight.half().T).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].half()
        return (gradient @ weight.half()).float(), (gradient.T @ x.half()).float()


class ReboundLinear(HalfLinear):
    """Overwrites its arguments, which then no longer show that a gradient is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.half(), weight.half()
        ctx.save_for_backward(x, weight)
        return (x @ weight.T).float()


class WrappedLinear(HalfLinear):
    """Has its ``forward`` within torch's decorator."""

    forward = staticmethod(torch.amp.custom_fwd(HalfLinear.forward, device_type="cuda"))  # type: ignore[assignment]


class ContextLinear(HalfLinear):
    """Has a ``forward`` without ctx, and any number of arguments."""

    @staticmethod
    def forward(*given: Tensor) -> Tensor:
        x, weight = given
        return (x.half() @ weight.half().T).float()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)


@pytest.mark.parametrize("linear", [HalfLinear, ReboundLinear, WrappedLinear, ContextLinear])
@pytest.mark.parametrize("trained", [True, False])
def test_a_gradient_passes_through_a_function_with_one_of_its_own(
    trained: bool, linear: Any
) -> None:
    weight = nn.Parameter(torch.ones(4, 4), requires_grad=trained)
    (product,) = products(nn.Identity(), lambda: linear.apply(batch(), weight))
    assert (product.dtype, product.passes_gradient) == (torch.float16, trained)


def test_a_function_within_a_function_is_as_trained_as_the_outer_one() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
            return HalfLinear.apply(x + 1, weight.detach())  # type: ignore[no-untyped-call]

    weight = nn.Parameter(torch.ones(4, 4))
    (product,) = products(nn.Identity(), lambda: Twice.apply(batch(), weight))  # type: ignore[no-untyped-call]
    assert product.passes_gradient


ATTENTION = {
    "sdpa": lambda x: scaled_dot_product_attention(x, x, x, dropout_p=0.1),
    "by keyword": lambda x: scaled_dot_product_attention(query=x, key=x, value=x, dropout_p=0.1),
}


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_attention_is_in_the_dtype_that_it_was_given(
    attention: str, dtype: torch.dtype, autocast: bool
) -> None:
    """With dropout there is no fused kernel on a CPU, and both products inside are in FP32."""
    x = torch.ones(1, 2, 8, 4, dtype=dtype)
    with torch.autocast(device_type(), torch.bfloat16, enabled=autocast):
        seen = products(
            nn.Identity(),
            lambda: (ATTENTION[attention](x), torch.ones(4, 4).mv(x[0, 0, 0].float())),
        )
    assert [p.dtype for p in seen[:2]] == [torch.bfloat16 if autocast else dtype] * 2
    # It is no attention. A CPU's autocast leaves it alone, an accelerator's does not.
    lowered = autocast and device_type() != "cpu"
    assert seen[-1].dtype is (torch.bfloat16 if lowered else torch.float32)


@pytest.mark.on_standin
def test_an_island_is_where_autocast_was_switched_off_within_autocast() -> None:
    model = net()

    def islands() -> list[bool]:
        def step() -> Tensor:
            y = model[0](batch())
            with torch.autocast(device_type(), enabled=False):
                output: Tensor = model[2](y.float())
            return output

        return [product.context.island for product in products(model, step)]

    with torch.autocast(device_type(), torch.bfloat16):
        assert islands() == [False, True]
    assert islands() == [False, False]


# -- the leaves of a loss's graph: the tensors to which a backward pass gives gradients


def test_leaves_are_what_gets_a_gradient() -> None:
    model = net()
    model[0].requires_grad_(False)
    extra = torch.ones(1, requires_grad=True)
    value = loss(model, batch()) * extra + extra  # reached twice, found once
    found = find_graph_leaves(value)
    value.backward()
    graded = [*(p for p in model.parameters() if p.grad is not None), extra]
    assert found.complete
    assert sorted(map(id, found.tensors)) == sorted(map(id, graded))
    assert len(find_graph_leaves(value).tensors) == 3  # also after the backward pass


def test_a_function_in_python_may_hide_others() -> None:
    model, x = net(), batch().requires_grad_()
    found = find_graph_leaves(checkpoint(model, x, use_reentrant=True).sum())
    assert not found.complete
    assert [leaf is x for leaf in found.tensors] == [True]
    assert find_graph_leaves(checkpoint(model, x, use_reentrant=False).sum()).complete


def test_no_graph_has_no_leaves_and_a_leaf_is_its_own() -> None:
    single = torch.ones((), requires_grad=True)
    assert find_graph_leaves(single).tensors == (single,)
    assert find_graph_leaves(torch.ones(())).tensors == ()
    assert find_graph_leaves(None).tensors == ()


ONE = torch.ones(())


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        (ONE, ONE),
        ((ONE, {"a": 1}), ONE),
        ([ONE], ONE),
        ({"loss": ONE, "a": 1}, ONE),
        ({"a": ONE}, None),
        ((), None),
        ((3, ONE), None),
        (1.0, None),
    ],
)
def test_where_the_loss_is_in_a_result(result: Any, loss: Tensor | None) -> None:
    assert loss_in(result) is loss
