"""A model that was looked at is as it was: also after errors, conversions and backward passes."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

import halfguard as hg
from halfguard.diagnosis.model.restore_model import restore_afterwards
from tests.diagnosis.model.checks.helper import batch, loss, net
from tests.guard.helper import same
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device")


class Untidy(nn.Module):
    """Changes all that a forward pass may change, and then raises if it is told to."""

    count: Tensor
    cache: Tensor | None

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.inner, self.raises = net(batchnorm=True), raises
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.cache = torch.rand(4)
        self.register_buffer("late", torch.ones(1))
        random.random()
        output: Tensor = self.inner(x)
        self.eval()
        if self.raises:
            raise ValueError("untidy")
        return output


def backward_in_the_loss(model: nn.Module, x: Tensor) -> Tensor:
    value = loss(model, x)
    value.backward()
    return value


def state(model: nn.Module) -> dict[str, Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "tensors": [
            (name, t.clone()) for name, t in (*model.named_parameters(), *model.named_buffers())
        ],
        "gradients": [
            (id(p.grad), p.grad.clone()) for p in model.parameters() if p.grad is not None
        ],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(getattr(module, name)) for module in model.modules() for name in hooks],
        "generators": (torch.get_rng_state(), random.getstate()),
        "autocast": (
            torch.is_autocast_enabled(device_type()),
            torch.get_autocast_dtype(device_type()),
        ),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("raises", [False, True], ids=["passes", "raises"])
@pytest.mark.parametrize("function", [loss, backward_in_the_loss])
@pytest.mark.parametrize("graded", [False, True], ids=["no gradients", "gradients"])
@pytest.mark.usefixtures("seed")
def test_everything_is_as_before(
    raises: bool, function: Callable[[nn.Module, Tensor], Tensor], graded: bool
) -> None:
    model = Untidy(raises)
    for parameter in model.parameters() if graded else ():
        parameter.grad = torch.full_like(parameter, 3.0)
    with torch.autocast(device_type(), torch.bfloat16):
        before = state(model)
        diagnosis = hg.doctor(model, loss=function, batch=batch())
        after = state(model)
    assert [found.code for found in diagnosis.findings] == ["HD100"] * raises
    for name, value in before.items():
        assert same(value, after[name]), name
    assert model.cache is None


@pytest.mark.usefixtures("seed")
def test_an_interrupt_leaves_nothing_behind_either() -> None:
    def interrupted(model: nn.Module, x: Tensor) -> Tensor:
        loss(model, x)
        model.eval()
        raise KeyboardInterrupt

    model = Untidy(raises=False)
    before = state(model)
    with pytest.raises(KeyboardInterrupt):
        hg.doctor(model, loss=interrupted, batch=batch())
    assert all(same(value, state(model)[name]) for name, value in before.items())


def test_buffers_that_nobody_can_write_to_are_no_obstacle() -> None:
    model = net(batchnorm=True)
    model.register_buffer("expanded", torch.zeros(1).expand(4))
    with torch.inference_mode():
        model.register_buffer("inferred", torch.ones(2))
    before = state(model)
    assert hg.doctor(model, batch=batch()).ok
    assert all(same(value, state(model)[name]) for name, value in before.items())


@pytest.mark.on_standin
def test_a_conversion_is_taken_back_with_gradients_and_identities() -> None:
    model = net(batchnorm=True)
    loss(model, batch()).backward()
    tensors = [*model.parameters(), *model.buffers()]
    before = state(model)
    with restore_afterwards(model):
        model.half()
        assert all(p.dtype is torch.float16 for p in model.parameters())
    assert all(
        a is b for a, b in zip(tensors, [*model.parameters(), *model.buffers()], strict=True)
    )
    assert all(same(value, state(model)[name]) for name, value in before.items())


class Keeping(nn.Module):
    """Keeps things beside its weights: numbers, tensors, lists, a metric; all change in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.seen, self.best = net(), 0, [torch.zeros(1)], {"loss": 1.0}
        self.sum, self.pair, self.names = torch.zeros(1), (torch.zeros(1),), {"a"}
        self.metric = MeanMetric()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        self.sum += 1
        self.seen[0] += 1
        self.pair[0].add_(1)
        self.seen.append(x)
        self.best["loss"] = 0.0
        self.names.add("b")
        del self.best["loss"]
        output: Tensor = self.inner(x)
        self.metric(output.detach())
        x.zero_()
        return output


def test_attributes_and_metrics_are_as_before() -> None:
    model = Keeping()
    model.metric(torch.ones(3))
    value, total = model.metric.compute(), model.sum
    assert hg.doctor(model, batch=batch()).ok
    assert model.sum is total
    assert (model.calls, model.best, model.names) == (0, {"loss": 1.0}, {"a"})
    assert [len(model.seen), model.seen[0], model.sum, model.pair[0]] == [1, 0, 0, 0]
    assert not hasattr(model, "last")
    assert model.metric.update_count == 1
    assert model.metric.compute() == value
    model(batch())
    assert (model.calls, float(model.sum)) == (1, 1.0)


def test_an_activation_that_a_module_keeps_can_still_be_differentiated() -> None:
    model = net()
    model.kept = model(batch())
    assert hg.doctor(model, batch=batch()).ok
    model.kept.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Rotary(nn.Module):
    """Multiplies by a buffer, which autograd keeps for the backward pass."""

    cosine: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cosine", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.cosine


@pytest.mark.usefixtures("seed")
def test_a_backward_pass_that_is_pending_still_works() -> None:
    model = Rotary()
    value = loss(model, batch())
    assert hg.doctor(model, batch=batch()).ok
    value.backward()
    assert model.linear.weight.grad is not None


@pytest.mark.usefixtures("seed")
def test_a_nan_in_a_buffer_is_no_reason_to_write_it() -> None:
    model = Rotary()
    model.cosine[0] = float("nan")
    value, version = loss(model, batch()), model.cosine._version
    hg.doctor(model, batch=batch())
    assert model.cosine._version == version
    value.backward()

    def written(model: Any, x: Tensor) -> Any:
        model.cosine[1] = 5
        return model(x)

    hg.doctor(model, loss=written, batch=batch())
    assert model.cosine.isnan().tolist() == [True, False, False, False]
    assert model.cosine[1:].tolist() == [1, 1, 1]


class Growing(nn.Module):
    """Resizes, replaces the storage of, and converts tensors that it holds; the last one it only writes."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = torch.arange(6.0).reshape(2, 3).T
        self.moved, self.converted = torch.ones(3), torch.ones(3)
        self.inner, self.shadow, self.last = net(), torch.ones(8), torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        self.columns.resize_(7, 5).fill_(9)
        self.moved.set_(torch.full((2,), 8.0))  # type: ignore[call-overload]
        self.converted.data = self.converted.half()
        self.shadow.data = self.inner[0].bias.data
        self.last += 1
        return self.inner(x)


def test_a_tensor_that_was_resized_is_as_before() -> None:
    model = Growing()
    views = model.columns[0], model.moved[:1]
    held = [model.columns, model.moved, model.converted, model.shadow, model.last]
    before = [t.clone() for t in (*held, *model.parameters())]
    assert hg.doctor(model, batch=batch()).ok
    assert same(before, [*held, *model.parameters()])
    assert model.columns.stride() == (1, 3)
    model.columns[0, 0] = model.moved[0] = 5
    assert [float(view[0]) for view in views] == [5, 5]


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_tensors_of_any_kind_are_as_before() -> None:
    model = net()
    model.held = [
        torch.ones(3, dtype=torch.int8),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.ones(3, dtype=torch.complex64),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ]

    def written(model: Any, x: Tensor) -> Any:
        for tensor in model.held:
            tensor.fill_(0)
        return model(x)

    assert hg.doctor(model, loss=written, batch=batch()).ok
    for tensor in model.held:
        plain = tensor.dequantize() if tensor.is_quantized else tensor.to(torch.complex64)
        assert plain.real.tolist() == pytest.approx([1, 1, 1])


def test_one_tensor_that_cannot_be_put_back_does_not_stop_the_others() -> None:
    class Stubborn(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is Tensor.copy_:
                raise TypeError("read only")
            return super().__torch_function__(func, types, args, kwargs or {})

    model = Growing()
    model.first = torch.zeros(2).as_subclass(Stubborn)

    def written(model: Any, x: Tensor) -> Any:
        model.first += 1
        return model(x)

    with pytest.warns(UserWarning, match="1 of its tensors could not be written back.*read only"):
        assert hg.doctor(model, loss=written, batch=batch()).ok
    assert model.last.tolist() == [0, 0]


class Encoding(UserDict[str, Any]):
    """As a tokenizer returns it."""


@pytest.mark.parametrize("wrap", [dict, Encoding])
def test_a_batch_that_is_written_into_is_as_before(wrap: Any) -> None:
    def greedy(model: nn.Module, x: Any) -> Tensor:
        x["inputs"][0].mul_(2)
        assert x["inputs"][1].is_leaf
        assert x["inputs"][1].requires_grad
        return loss(model, x.pop("inputs")[0])

    given = wrap(inputs=[torch.ones(4, 4), torch.ones(1, requires_grad=True)], length=4)
    assert hg.doctor(net(), loss=greedy, batch=given).ok
    assert torch.equal(given["inputs"][0], torch.ones(4, 4))
    assert isinstance(given, wrap)
    assert list(given) == ["inputs", "length"]
