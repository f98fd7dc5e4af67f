from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halfguard.diagnosis.model.forward import ObservedForward
from halfguard.diagnosis.model.gradients import measure_gradients
from halfguard.diagnosis.model.training_setup import TrainingSetup

pytestmark = pytest.mark.usefixtures("seed")


def setup_of(model: nn.Module, run: object) -> TrainingSetup:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainingSetup(
        model=model,
        optimizers=(optimizer,),
        run_forward=run,  # type: ignore[arg-type]
        forward=ObservedForward(),
    )


def test_gradients_are_those_of_a_backward_pass_and_are_not_left_behind() -> None:
    model, x = nn.Linear(4, 2), torch.randn(8, 4)
    found = measure_gradients(setup_of(model, lambda: model(x).square().mean()))
    assert found.lost == 0.0
    assert model.weight.grad is None
    model(x).square().mean().backward()
    torch.testing.assert_close(found.of[id(model.weight)], model.weight.grad)


def test_the_share_of_gradients_that_vanish_in_half() -> None:
    model, x = nn.Linear(4, 1).half(), torch.ones(1, 4).half()
    with torch.no_grad():
        x[0, :2] = 1e-4  # their gradients are 1e-4 times the factor of the loss

    def run() -> Tensor:
        output: Tensor = model(x)
        return output.float().sum() * 1e-4

    found = measure_gradients(setup_of(model, run))
    assert found.lost == pytest.approx(2 / 5)


def test_nothing_is_known_without_a_loss_or_with_a_graph_that_cannot_be_walked() -> None:
    model, x = nn.Linear(4, 2), torch.randn(8, 4, requires_grad=True)
    assert measure_gradients(setup_of(model, lambda: model(x))) is None

    def reentrant() -> Tensor:
        output: Tensor = checkpoint(model, x, use_reentrant=True)
        return output.sum()

    assert measure_gradients(setup_of(model, reentrant)) is None


def test_compiled_code_runs_eagerly_and_warnings_are_not_shown() -> None:
    compiled: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model, x = nn.Linear(4, 2), torch.randn(8, 4)
    fast = torch.compile(model, backend=backend)

    def run() -> Tensor:
        warnings.warn("from the user's code", stacklevel=1)
        output: Tensor = fast(x)
        return output.sum()

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert measure_gradients(setup_of(model, run)) is not None
    assert not compiled
    assert not shown


def test_hooks_of_weights_are_not_called() -> None:
    model, x = nn.Linear(4, 2), torch.randn(8, 4)
    called: list[Tensor] = []
    hook = model.weight.register_hook(called.append)
    setup = setup_of(model, lambda: model(x).sum())
    assert measure_gradients(setup) is None
    assert not called
    hook.remove()
    assert measure_gradients(setup) is not None
