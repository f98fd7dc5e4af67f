"""Both forms of use, several optimizers, accumulation, and mistakes of the user."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.guard.guard import Guard
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.records import Action, Cause
from tests.support.models import (
    OPTIMIZERS,
    Batch,
    batches,
    differences,
    loss_fn,
    make,
    out_of_memory,
)

pytestmark = pytest.mark.usefixtures("device", "seed")


def guarded(name: str, config: Any = "default") -> tuple[nn.Module, Guard]:
    model = make(name)
    return model, Guard(model, OPTIMIZERS["sgd"](model.parameters()), config)


def test_a_mapping_with_a_loss_will_do() -> None:
    _, guard = guarded("transformer", {"scale": {"init": 64.0}})
    outcome = guard.step(lambda m, b: {"loss": loss_fn(m, b), "logits": None}, batches(1)[0])
    assert outcome.applied
    assert 0 < outcome.loss < 10
    assert "StepOutcome(apply" in repr(outcome)


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(4, 12)
        self.critic = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(p.parameters(), 1e-3) for p in (self.critic, self.generator)]


def turn(
    guard: Guard, optimizer: torch.optim.Optimizer, loss_of: Callable[..., Tensor], *given: Any
) -> StepOutcome:
    """Take one step of one of several optimizers; the first tensor is the batch."""
    with guard.autocast():
        loss = loss_of(guard.model, *given)
    guard.backward(loss, batch=given[0])
    return guard.update(optimizer)


def critic_loss(gan: Gan, real: Tensor, noise: Tensor) -> Tensor:
    made = gan.critic(gan.generator(noise).detach())
    return nn.functional.softplus(made).mean() + nn.functional.softplus(-gan.critic(real)).mean()


def generator_loss(gan: Gan, noise: Tensor) -> Tensor:
    return nn.functional.softplus(-gan.critic(gan.generator(noise))).mean()


def test_a_bad_critic_step_leaves_the_generator_its_turn() -> None:
    gan = Gan()
    critic, generator = gan.optimizers()
    guard = Guard(gan, [critic, generator], {"scale": {"init": 64.0}})
    real, noise = batches(1)[0][0], torch.randn(8, 4)
    real[0, 0] = torch.inf
    outcome = turn(guard, critic, critic_loss, real, noise)
    assert outcome.cause is Cause.BAD_BATCH
    assert all(name.startswith("critic.") for name in outcome.culprits)
    assert turn(guard, generator, generator_loss, noise).applied
    assert guard.scaler.get_scale() == 64.0


@pytest.mark.on_standin
def test_fp16_weights_are_trained_through_their_masters() -> None:
    model = make("transformer").half()
    guard = Guard(
        model, hg.MasterWeights(OPTIMIZERS["adamw-foreach"](model.parameters())), "native_fp16"
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    outcomes = [guard.step(loss_fn, (x.half(), y)) for x, y in batches(30)]
    assert outcomes[-1].applied
    assert len(differences(before, model.state_dict())) == len(before)
    bad = batches(1)[0]
    outcome = guard.step(loss_fn, (bad[0] * torch.nan, bad[1]))
    assert outcome.cause is Cause.BAD_BATCH
    assert outcome.culprits
    assert set(outcome.culprits) <= set(dict(model.named_parameters()))


def test_half_parameters_without_masters_are_refused_with_both_cures() -> None:
    model = make("transformer").half()
    guard = Guard(model, OPTIMIZERS["sgd"](model.parameters()), "native_fp16")
    with pytest.raises(UsageError, match="float16 parameters") as caught:
        guard.step(loss_fn, (batches(1)[0][0].half(), batches(1)[0][1]))
    assert "upcast_trainable" in caught.value.cure
    assert "MasterWeights" in caught.value.cure


def detached(model: nn.Module, batch: Batch) -> Tensor:
    return torch.tensor(loss_fn(model, batch).item())


def vector(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0])


def elsewhere(model: nn.Module, batch: Batch) -> Tensor:
    return torch.ones((), requires_grad=True) * 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (detached, "no autograd graph"),
        (vector, "shape \\[8, 4\\], but a loss must be a tensor with one element"),
        (elsewhere, "No (gradient|parameter)"),
    ],
)
def test_a_wrong_loss_is_explained(wrong: Callable[..., Tensor], message: str) -> None:
    _model, guard = guarded("transformer")
    with pytest.raises(UsageError, match=message) as caught:
        guard.step(wrong, batches(1)[0])
    assert caught.value.cure


def test_update_without_backward_and_saving_an_open_step_are_refused() -> None:
    _model, guard = guarded("transformer", {"accumulate": 2})
    with pytest.raises(UsageError, match=r"without a backward"):
        guard.update()
    assert guard.step(loss_fn, batches(1)[0]).action is Action.ACCUMULATE
    with pytest.raises(UsageError, match="1 of 2 micro-batches"):
        guard.state_dict()


@pytest.mark.on_standin
def test_infinities_that_are_meant_do_no_harm() -> None:
    """A float mask of -inf, NaN for a missing label: the loss is finite, so the step is applied."""
    _model, guard = guarded("transformer", {"scale": {"init": 2.0**23}})
    batch = {"batch": batches(1)[0], "mask": torch.tensor([0.0, -torch.inf, torch.nan])}
    causes = [guard.step(lambda m, b: loss_fn(m, b["batch"]), batch).cause for _ in range(20)]
    assert set(causes) == {Cause.GRADIENT_OVERFLOW, None}, "the scale can fall all the same"
    assert causes[-1] is None


@pytest.mark.usefixtures("seed")
def test_a_critic_may_have_several_turns_and_a_scheduler_follows_its_own_optimizer() -> None:
    gan = Gan()
    critic, generator = gan.optimizers()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(generator, 0.9)
    guard = Guard(gan, [critic, generator], {"scale": {"init": 64.0}}, scheduler=scheduler)
    real, noise = batches(1)[0][0], torch.randn(8, 4)
    for _ in range(3):
        for _ in range(2):
            assert turn(guard, critic, critic_loss, real, noise)
        assert turn(guard, generator, generator_loss, noise)
    assert scheduler.last_epoch == 3
    assert guard.summary().applied == 9


def test_an_evaluation_opens_no_step() -> None:
    model, guard = guarded("mlp-batchnorm", {"scale": {"init": 64.0}})
    with torch.no_grad(), guard.autocast():
        model(batches(1)[0][0])
    mean = model.get_buffer("norm.running_mean").clone()
    inputs, labels = batches(1)[0]
    assert guard.step(loss_fn, (inputs * torch.nan, labels)).action is Action.SKIP
    assert torch.equal(model.get_buffer("norm.running_mean"), mean)


@pytest.mark.parametrize(
    "config", [{"skip": {"on_nonfinite": "retry_fp32"}}, {"heal": {}}, {"verify": {"every": 10}}]
)
def test_the_form_without_a_callable_refuses_what_must_repeat_a_forward_pass(config: Any) -> None:
    model, guard = guarded("mlp-batchnorm", config)
    with pytest.raises(UsageError, match=f"{next(iter(config))}.* must repeat the forward pass"):
        guard.backward(loss_fn(model, batches(1)[0]))


def test_parameters_added_later_are_measured_too(seed: Callable[[int], None]) -> None:
    model = make("mlp-batchnorm")
    first, *others = model.parameters()
    optimizer = torch.optim.SGD([first], lr=0.1)
    guard = Guard(model, optimizer, {"precision": "fp32", "clip": {"max_norm": 1e9}})
    batch = batches(1)[0]
    guard.step(loss_fn, batch)
    optimizer.add_param_group({"params": others})
    model.zero_grad()
    seed(2)
    loss_fn(model, batch).backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    seed(2)
    assert guard.step(loss_fn, batch).grad_norm == pytest.approx(norm.item(), rel=1e-6)


def test_an_evaluation_in_eval_mode_opens_none_either() -> None:
    model, guard = guarded("mlp-batchnorm", {"precision": "fp32"})
    model.eval()
    with guard.autocast(), torch.no_grad():
        model(batches(1)[0][0])
    assert not guard._begun
    model.train()
    with guard.autocast():
        assert guard._begun


def test_a_part_in_train_mode_opens_a_step_and_its_statistics_are_put_back() -> None:
    model = make("mlp-batchnorm").eval()
    model.get_submodule("norm").train()
    guard = Guard(model, OPTIMIZERS["sgd"](model.parameters()), {"precision": "fp32"})
    inputs, labels = batches(1)[0]
    with guard.autocast():
        loss = loss_fn(model, (inputs * torch.nan, labels))
    guard.backward(loss)
    assert guard.update().action is Action.SKIP
    assert model.get_buffer("norm.running_mean").isfinite().all()


def test_other_parameters_in_the_same_number_are_measured() -> None:
    model = nn.ModuleList([nn.Linear(12, 4, bias=False), nn.Linear(12, 4, bias=False)])
    first, second = model.parameters()
    optimizer = torch.optim.SGD([first], lr=0.1)
    guard = Guard(model, optimizer, {"precision": "fp32"})
    x = torch.randn(8, 12)
    for parameter, factor in ((first, 1.0), (second, 3.0)):
        optimizer.param_groups[0]["params"] = [parameter]
        model.zero_grad()
        outcome = guard.step(lambda _, b: (b @ first.T + 3.0 * b @ second.T).sum(), x)
        assert outcome.grad_norm == pytest.approx(factor * x.sum(0).norm().item() * 2, rel=1e-5)


def test_a_step_that_was_given_up_takes_no_blame_from_the_next() -> None:
    _model, guard = guarded("transformer", {"scale": {"init": 2.0**24}})
    batch = batches(1)[0]

    with pytest.raises(torch.OutOfMemoryError):
        guard.step(lambda m, b: out_of_memory(loss_fn(m, b) * torch.nan), batch)
    assert (guard.batch_index, guard.summary().steps) == (1, 0)
    outcome = guard.step(loss_fn, batch)
    assert outcome.cause is Cause.GRADIENT_OVERFLOW
    assert guard.scaler.get_scale() == 2.0**23


def test_the_outcome_of_an_open_step_has_the_loss_of_its_micro_batch() -> None:
    model = make("mlp-batchnorm")
    config = {"accumulate": 3, "scale": {"init": 64.0}}
    guard = Guard(model, OPTIMIZERS["sgd"](model.parameters()), config)
    outcomes = [guard.step(loss_fn, batch) for batch in batches(3)]
    assert [o.action for o in outcomes] == [Action.ACCUMULATE, Action.ACCUMULATE, Action.APPLY]
    assert not any(outcomes[:2])
    losses = [outcome.loss for outcome in outcomes[:2]]
    assert all(map(math.isfinite, losses))
    assert losses[0] != losses[1]
    last = 3 * outcomes[2].loss - sum(losses)  # the mean of all three
    assert 0.1 < last / losses[0] < 10


def test_reconfigure_refuses_what_was_made_once_and_keeps_the_rest() -> None:
    model = nn.Linear(4, 1)
    config = {"scale": {"init": 8.0}, "skip": {"max_consecutive": 1}, "recovery": {"every": 1}}
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    for name, value in {"recovery": None, "incidents": None}.items():
        with pytest.raises(UsageError, match=f"cannot change {name}"):
            guard.reconfigure(guard.config.model_copy(update={name: value}))
    clipped = hg.GuardConfig.load({**config, "clip": {"max_norm": 0.5}})
    guard.reconfigure(clipped)
    for _ in range(3):
        guard.step(lambda m, x: m(x).float().square().mean(), torch.randn(2, 4))
    bad = torch.full((2, 4), torch.nan)
    assert guard.step(lambda m, x: m(x).float().square().mean(), bad).action == "roll_back"
    assert guard.config == clipped, "a rollback does not undo the change"


@pytest.mark.parametrize("fused", [False, True])
def test_a_default_dtype_of_float64_changes_nothing(fused: bool) -> None:
    def run() -> list[str]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1).float()
        config = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}
        guard = hg.Guard(model, torch.optim.AdamW(model.parameters(), fused=fused), config)
        batches = [torch.ones(2, 4, dtype=torch.float32) * (6e4 if k == 1 else 1) for k in range(3)]
        return [
            str(guard.step(lambda m, x: (m(x) * m(x)).float().mean(), batch).action)
            for batch in batches
        ]

    expected = run()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert run() == expected == ["apply", "retry_fp32", "apply"]
    finally:
        torch.set_default_dtype(before)


def test_a_state_of_torchs_scaler_is_accepted_and_others_are_named() -> None:
    model = nn.Linear(4, 1)
    guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), {"scale": {"init": 8.0}})
    guard.load_state_dict(torch.amp.GradScaler("cpu", init_scale=512.0).state_dict())
    assert guard.scaler.get_scale() == 512
    with pytest.raises(UsageError, match="it does not contain precision, policy"):
        guard.load_state_dict({})
    older = guard.state_dict()
    del older["held"]
    with pytest.raises(UsageError, match="it does not contain held"):
        guard.load_state_dict(older)


@pytest.mark.parametrize("fused", [False, True])
def test_a_loop_may_unscale_and_edit_gradients_before_the_update(fused: bool) -> None:
    def make_step(*, guarded: bool) -> tuple[nn.Module, Callable[[Tensor], Any]]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        guard = hg.Guard(model, optimizer, {"scale": {"init": 512.0}}) if guarded else None
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0) if guard is None else guard.scaler

        def step(x: Tensor) -> Any:
            with torch.autocast("cpu", torch.float16):
                loss = model(x).float().square().mean()
            if guard is None:
                scaler.scale(loss).backward()
            else:
                guard.backward(loss)
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert model.weight.grad is not None
            model.weight.grad[0] *= -1
            if guard is not None:
                return guard.update()
            scaler.step(optimizer)
            scaler.update()
            return optimizer.zero_grad()

        return model, step

    (model, guarded), (expected, bare) = make_step(guarded=True), make_step(guarded=False)
    for index in range(6):
        x = torch.randn(8, 4) * (1e5 if index == 3 else 1)
        outcome = guarded(x)
        bare(x)
        assert outcome.applied == (index != 3)
        assert not outcome.applied or outcome.grad_norm == pytest.approx(0.5, rel=1e-4)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_gradients_that_are_unscaled_too_early_are_refused_and_leave_no_trace() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = hg.Guard(model, optimizer, {"scale": {"init": 8.0}})
    x = torch.randn(8, 4)
    guard.backward(model(x).square().mean())
    guard.scaler.unscale_(optimizer)
    with pytest.raises(UsageError, match="after the last backward"):
        guard.backward(model(x).square().mean())
    with pytest.raises(UsageError, match="No gradient reached"):
        guard.scaler.step(optimizer)  # by mistake: it unscales nothing
    loss = model(x).square().mean()
    norm = torch.stack([g.norm() for g in torch.autograd.grad(loss, [*model.parameters()])]).norm()
    outcome = guard.step(lambda model, x: model(x.float()).float().square().mean(), x)
    assert outcome.grad_norm == pytest.approx(norm.item(), rel=1e-2)


def test_closing_an_open_step_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    _, guard = guarded("transformer", {"accumulate": 4})
    for batch in batches(3):
        guard.step(loss_fn, batch)
    guard.close()
    assert "3 of 4 micro-batches were computed and are discarded" in caplog.text
