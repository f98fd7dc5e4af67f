"""The tracer's measurements, its cost on the device, and the removal of all hooks."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.numerics.histogram import INFINITE, NAN, bin_index, histogram
from halfguard.records.ranges import LayerStats, TraceStep
from halfguard.tracing.tracer import Tracer, count_binades, trace
from tests.support.cases import each
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device", "seed")


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train(model: nn.Module, tracer: Tracer, steps: int = 1, x: Tensor | None = None) -> None:
    for _ in range(steps):
        model(torch.randn(3, 4) if x is None else x).sum().backward()
        model.zero_grad()  # before step(): gradients are measured when they are computed
        tracer.step()


def latest(tracer: Tracer) -> TraceStep:
    assert tracer.latest is not None
    return tracer.latest


def one(step: TraceStep, module: str, place: str, name: str = "") -> LayerStats:
    (found,) = [s for s in step.layers if (s.module, s.place, s.name) == (module, place, name)]
    return found


def hooks(model: nn.Module) -> int:
    on_modules = sum(len(module._forward_hooks) for module in model.modules())
    return on_modules + sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def test_outputs_gradients_and_parameter_gradients_are_those_of_the_tensors() -> None:
    model, x = mlp(), torch.randn(3, 4)
    with trace(model) as tracer:
        hidden = model[0](x)
        hidden.retain_grad()
        loss = (model[2](model[1](hidden)) * 3).sum()
        loss.backward()
        tracer.step()
    step, weight = latest(tracer), model[0].weight
    assert hidden.grad is not None
    assert weight.grad is not None
    for stats, tensor in [
        (one(step, "0", "output"), hidden),
        (one(step, "0", "grad_output"), hidden.grad),
        (one(step, "0", "param_grad", "weight"), weight.grad),
    ]:
        assert (stats.low, stats.high) == (tensor.min().item(), tensor.max().item())
        assert stats.absmax == tensor.abs().max().item()
        assert (stats.numel, stats.dtype, stats.calls) == (tensor.numel(), "float32", 1)
        assert stats.finite
    assert one(step, "2", "grad_output").high == 3.0
    assert len(step.nonfinite) == 0


def test_range_counts_binades() -> None:
    model = nn.Sequential(nn.Identity())
    with trace(model, detail="range") as tracer:
        model(torch.tensor([0.0, 1.0, 1.5, -8.0, inf, torch.nan]))
        tracer.step()
    stats = one(latest(tracer), "0", "output")
    assert stats.bins == {0: 1, bin_index(0): 2, bin_index(3): 1, INFINITE: 1, NAN: 1}
    assert isnan(stats.absmax)
    assert latest(tracer).nonfinite == tuple(latest(tracer).layers)


@each("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_binades_read_from_the_bits_are_those_of_the_histogram(dtype: torch.dtype) -> None:
    every_half = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    values = every_half.to(dtype).view(2, -1).T
    assert torch.equal(count_binades(values), histogram([values])[0])


def test_headroom_is_in_doublings() -> None:
    stats = LayerStats("", "output", "", "float16", 1, 1, -16376.0, 3.0)
    assert stats.headroom() == 2.0
    assert LayerStats("", "output", "", "float16", 1, 1, -inf, 3.0).headroom() == -inf
    assert LayerStats("", "output", "", "float16", 1, 1, 0.0, 0.0).headroom() == inf


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Output:
    logits: Tensor
    extra: dict[str, Any]


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Any:
        half = {"half": x.half(), "ids": x.argmax(-1), "none": None, "empty": x[:0]}
        return OrderedDict(
            pair=Pair(x, x * 2), listed=[x * 3, "text"], output=Output(x * 4, half), same=x
        )


def test_any_nesting_of_outputs_is_opened() -> None:
    model = Nested()
    with trace(model) as tracer:
        model(torch.ones(2, 2))
        tracer.step()
    seen = {stats.name: (stats.high, stats.dtype) for stats in latest(tracer).layers}
    assert seen == {
        "pair.left": (1.0, "float32"),
        "pair.right": (2.0, "float32"),
        "listed.0": (3.0, "float32"),
        "output.logits": (4.0, "float32"),
        "output.extra.half": (1.0, "float16"),
        "same": (1.0, "float32"),
    }


def test_calls_of_a_shared_module_are_merged() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    with trace(model) as tracer:
        train(model, tracer)
    stats = one(latest(tracer), "0", "output")
    assert (stats.calls, stats.numel) == (2, 24)
    assert one(latest(tracer), "0", "param_grad", "weight").calls == 1


def test_micro_batches_are_one_step_and_their_gradient_is_the_accumulated_one() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    with trace(model) as tracer:
        for value in (1.0, 2.0):
            model(torch.tensor([[value]])).sum().backward()
        tracer.step()
    assert one(latest(tracer), "0", "output").calls == 2
    gradient = one(latest(tracer), "0", "param_grad", "weight")
    assert (gradient.high, gradient.numel, gradient.calls) == (3.0, 1, 2)


def test_tied_weights_are_counted_once() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
    model[1].weight = model[0].weight
    with trace(model) as tracer:
        model(torch.tensor([1])).sum().backward()
        tracer.step()
    assert [s.module for s in latest(tracer).at("param_grad")] == ["0"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_is_seen_once_with_its_gradients(reentrant: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block, self.head = nn.Linear(4, 4), mlp(), nn.Linear(2, 1)

        def forward(self, x: Tensor, *, save: bool) -> Tensor:
            x = self.stem(x)
            x = checkpoint(self.block, x, use_reentrant=reentrant) if save else self.block(x)
            return self.head(x)

    model, x = Model(), torch.randn(3, 4)
    with trace(model) as tracer:
        for save in (False, True):
            model(x, save=save).sum().backward()
            model.zero_grad()
            tracer.step()
    plain, saved = tracer.steps
    assert len(plain.layers) == len(saved.layers)
    assert all(stats in saved.layers for stats in plain.layers)


def test_an_in_place_operation_does_not_change_what_was_seen() -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    with trace(model) as tracer:
        model(torch.full((2,), -5.0))
        tracer.step()
    assert one(latest(tracer), "0", "output").low == -5.0
    assert one(latest(tracer), "1", "output").low == 0.0


def test_every_nth_step_is_sampled_and_the_model_is_untouched_in_between() -> None:
    model = mlp()
    with trace(model, every=3) as tracer:
        for step in range(7):
            assert (hooks(model) > 0) == (step % 3 == 0)
            train(model, tracer)
    assert [step.step for step in tracer.steps] == [0, 3, 6]
    assert hooks(model) == 0


def test_only_so_many_steps_are_kept() -> None:
    model = mlp()
    with trace(model, keep=2) as tracer:
        train(model, tracer, steps=5)
    assert [step.step for step in tracer.steps] == [3, 4]


def test_hooks_are_removed_after_an_exception_and_the_open_step_is_dropped() -> None:
    model = mlp()
    tracer = trace(model)

    def run() -> None:
        with tracer:
            train(model, tracer)
            model(torch.ones(2, 5))

    with pytest.raises(RuntimeError, match="shapes"):
        run()
    assert hooks(model) == 0
    assert len(tracer.steps) == 1


def test_a_gradient_that_arrives_after_the_end_is_not_looked_at() -> None:
    model = mlp()
    with trace(model) as tracer:
        loss = model(torch.randn(3, 4)).sum()
    loss.backward()
    assert tracer.latest is None


@pytest.mark.on_standin
@pytest.mark.parametrize("detail", ["health", "range"])
def test_the_host_waits_once_a_sampled_step(detail: Any) -> None:
    model, x = mlp(), torch.randn(3, 4)
    with trace(model, detail=detail) as tracer:
        with OpCounter() as forward_and_backward:
            model(x).sum().backward()
        assert forward_and_backward.host_syncs == 0
        with OpCounter() as fetching:
            tracer.step()
    # tolist() of a CPU table reads its memory; on a device it is the one copy to the host.
    assert fetching.host_syncs == 0
    copies = {"aten.stack.default", "aten.cat.default", "aten._to_copy.default"}
    assert fetching.ops.keys() <= copies


@pytest.mark.on_standin
def test_health_costs_a_fixed_number_of_operations_an_output() -> None:
    model, x = mlp(), torch.randn(3, 4)
    with OpCounter() as bare:
        model(x).sum().backward()
    model.zero_grad()
    with trace(model), OpCounter() as traced:
        model(x).sum().backward()
    # 4 outputs (the model's own is its last child's), their gradients, 4 parameters' gradients.
    looked = traced.ops["aten.aminmax.default"]
    assert looked <= 3 + 3 + 4
    assert traced.total - bare.total <= 6 * looked


@pytest.mark.on_standin
def test_the_numbers_of_training_are_not_changed() -> None:
    def run(traced: bool) -> list[Tensor]:
        torch.manual_seed(1)
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        with trace(model, detail="range") if traced else trace(nn.Identity()) as tracer:
            for _ in range(3):
                model(torch.randn(3, 4)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                tracer.step()
        return list(model.parameters())

    assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))


def test_a_compiled_module_is_one_module() -> None:
    class Compiled(nn.Module):
        """A stand-in for the result of torch.compile, without the compiler."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = mlp()

        def forward(self, x: Tensor) -> Any:
            return self._orig_mod(x)

    model = nn.Sequential(Compiled())
    with trace(model) as tracer:
        train(model, tracer)
    assert {s.module for s in latest(tracer).at("output")} == {"", "0"}


def test_it_works_under_emulated_autocast() -> None:
    model = mlp()
    with trace(model) as tracer, hg.emulate_autocast("cuda"):
        model(torch.full((1, 4), 6e4)).sum().backward()
        tracer.step()
    assert one(latest(tracer), "0", "output").dtype == "float16"


def test_a_step_goes_to_json_and_back() -> None:
    model = mlp()
    with trace(model, detail="range") as tracer:
        train(model, tracer)
    step = latest(tracer)
    assert TraceStep.from_json(step.to_json()) == step
    assert list(step.of("0")) == [s for s in step.layers if s.module == "0"]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="every=0"):
        trace(mlp(), every=0)
    with pytest.raises(UsageError, match="'health' or 'range'"):
        trace(mlp(), detail="all")  # type: ignore[arg-type]
