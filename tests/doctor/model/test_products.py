"""Products are weighed as torch's own counter does it, and told apart by where a gradient passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from halfguard.doctor.model.forward import watch
from halfguard.doctor.model.products import Product
from tests.doctor.model.checks.helper import batch, net

pytestmark = pytest.mark.usefixtures("seed")


def products(model: nn.Module, step: Any) -> list[Product]:
    seen = watch(model, step, "cpu")
    assert seen.raised is None
    return seen.products


MODELS: dict[str, tuple[Any, Tensor]] = {
    "linear": (lambda: nn.Linear(4, 8), torch.ones(3, 4)),
    "batched": (lambda: nn.Linear(4, 8, bias=False), torch.ones(2, 3, 4)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, groups=2), torch.ones(2, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3), torch.ones(2, 4, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_work_is_what_torch_counts(name: str) -> None:
    build, x = MODELS[name]
    model = build()
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert sum(p.work for p in products(model, lambda: model(x))) == counter.get_total_flops()


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
    (product,) = products(nn.Identity(), lambda: operation(a))
    assert product.work == pytest.approx(2 * multiplications)


def test_a_recurrent_layer_weighs_as_much_as_its_products_do() -> None:
    model, x = nn.LSTM(16, 16), torch.ones(4, 3, 16)
    exact = 2 * 2 * 4 * 3 * 16 * 4 * 16  # input and state, through four gates
    with torch.autocast("cpu", torch.bfloat16):
        work = sum(p.work for p in products(model, lambda: model(x)))
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
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        seen = products(model, lambda: model(batch()))
    assert {p.module: p.trains for p in seen} == {
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


def test_an_island_is_where_autocast_was_switched_off_within_autocast() -> None:
    model = net()

    def islands() -> list[bool]:
        def step() -> Tensor:
            y = model[0](batch())
            with torch.autocast("cpu", enabled=False):
                output: Tensor = model[2](y.float())
            return output

        return [product.around.island for product in products(model, step)]

    with torch.autocast("cpu", torch.bfloat16):
        assert islands() == [False, True]
    assert islands() == [False, False]
