"""A step is a transaction: whatever raises, it leaves no trace, or the guard refuses to continue.

The law is tested by raising at every point of a step in turn: at each operation that torch dispatches, and
at each Python call inside ``halfguard.guard``. After the exception two more steps are run. Weights, optimizer
state, buffers, scheduler and loss scale must then be those of a run that never saw the batch. Two other
outcomes are allowed, and only once an optimizer has changed a weight: the step was applied as a whole, or the
guard refuses every further step.

``scripts/soak transaction`` tries every point; CI tries a sample.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.guard.stepping.forward_pass import Transaction
from tests.guard.helper import Recorder, frozen, same
from tests.support.devices import chosen_device
from tests.support.pairs import parametrize_pairs
from tests.support.ranks import Ranks

pytestmark = pytest.mark.usefixtures("device", "seed")


class InjectedError(Exception):
    """Raised at a chosen point of a step."""


class RaiseAtOperation(TorchDispatchMode):
    """Raises at the n-th operation that is dispatched."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            raise InjectedError(str(func))
        return func(*args, **(kwargs or {}))


NOTHING_HAS_BEGUN = {hg.Guard.step.__code__, Transaction.__enter__.__code__}
CLEAN_UP = {"discard", "abandon_step", "restore", "clear", "drop_gradients"}


@contextmanager
def raise_at_call(at: int) -> Iterator[None]:
    """Raise when the n-th Python function of ``halfguard.guard`` is called."""
    left = at

    def profile(frame: Any, event: str, _arg: Any) -> None:
        nonlocal left
        name = frame.f_code.co_name
        # Not while the step is being abandoned: what cleans up may not fail as well.
        if event != "call" or "/halfguard/guard/" not in frame.f_code.co_filename:
            return
        if name in CLEAN_UP or frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        if frame.f_code in NOTHING_HAS_BEGUN:
            return
        left -= 1
        if left == 0:
            sys.setprofile(None)
            raise InjectedError(name)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 3),
    "batchnorm": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    ),
    "attention": lambda: nn.Sequential(
        nn.LayerNorm(6), nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
    ),
}
POINTS: dict[str, Callable[[int], Any]] = {"operation": RaiseAtOperation, "call": raise_at_call}
BEFORE, AFTER = 2, 2


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    output = model(batch)
    hidden = output * batch.abs().amax()  # overflows in half where the batch is large
    return nn.functional.mse_loss(hidden.float(), torch.zeros_like(hidden, dtype=torch.float32))


class Run:
    """One run: healthy steps, the step with the exception, healthy steps."""

    def __init__(self, name: str, accumulate: int, *, retry: bool) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = MODELS[name]()
        if torch.distributed.is_initialized():
            self.model = nn.parallel.DistributedDataParallel(self.model)
        # Not foreach, torch's default on accelerators: below a dispatch mode, torch does not count changes of
        # lists on the host in version counters.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, foreach=False)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        config = {
            "scale": {"init": 64.0, "growth_interval": 2}, "clip": {"max_norm": 1.0},
            "skip": {"on_nonfinite": "retry_fp32" if retry else "skip"}, "accumulate": accumulate,
        }  # fmt: skip
        self.guard = hg.Guard(self.model, self.optimizer, config, scheduler=self.scheduler)
        self.accumulate = accumulate
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        generator = torch.Generator().manual_seed(1 + rank)
        self.data = [torch.randn(4, 2, 6, generator=generator) for _ in range(8 * accumulate)]
        if name == "batchnorm":
            self.data = [batch[:, 0] for batch in self.data]
        self.bad = self.data[-1] * (300.0 if retry else 1.0)

    def steps(self, count: int) -> None:
        for _ in range(count * self.accumulate):
            self.guard.step(loss_fn, self.data.pop(0))

    def raising_step(self, injection: Any) -> bool:
        """Run the step with the exception at its last micro-batch; return whether it was raised."""
        for batch in self.data[-self.accumulate : -1]:
            self.guard.step(loss_fn, batch)
        try:
            with injection:
                self.guard.step(loss_fn, self.bad)
        except InjectedError:
            return True
        return False

    def state(self) -> Any:
        parts = (self.model, self.optimizer, self.scheduler, self.guard.scaler)
        return frozen([part.state_dict() for part in parts])


def outcome(name: str, accumulate: int, *, retry: bool, point: str, at: int, expected: Any) -> str:
    """Return ``never seen``, ``applied``, ``refused``, ``complete`` (nothing raised), or a difference."""
    run = Run(name, accumulate, retry=retry)
    run.steps(BEFORE)
    if not run.raising_step(POINTS[point](at)):
        return "complete"
    try:
        run.steps(AFTER)
    except UsageError as error:
        return "refused" if "partly applied" in str(error) else f"{type(error).__name__}: {error}"
    found = run.state()
    return next((word for word, state in expected.items() if same(state, found)), "different")


def expected_states(name: str, accumulate: int, *, retry: bool) -> dict[str, Any]:
    states = {}
    for word in ("never seen", "applied"):
        run = Run(name, accumulate, retry=retry)
        run.steps(BEFORE)
        if word == "applied":
            run.raising_step(RaiseAtOperation(-1))
        run.steps(AFTER)
        states[word] = run.state()
    return states


def try_points(
    name: str, accumulate: int, *, retry: bool, point: str, every: int, start: int = 1
) -> Counter[str]:
    """Raise at every ``every``-th point of a step, until the step has no such point; count the outcomes."""
    expected = expected_states(name, accumulate, retry=retry)
    found: Counter[str] = Counter()
    for at in itertools.count(start, every):
        word = outcome(name, accumulate, retry=retry, point=point, at=at, expected=expected)
        if word == "complete":
            return found
        found[word] += 1
    return found


@parametrize_pairs(
    where=[("operation", 11), ("call", 5)],
    name=MODELS,
    accumulate=[1, pytest.param(4, marks=pytest.mark.slow)],
    retry=[False, True],
)
def test_an_exception_leaves_no_trace(
    name: str, accumulate: int, retry: bool, where: tuple[str, int]
) -> None:
    point, every = where
    found = try_points(name, accumulate, retry=retry, point=point, every=every)
    assert found["never seen"] > 0
    assert set(found) <= {"never seen", "applied", "refused"}, found


def try_on_rank(
    name: str, accumulate: int, retry: bool, point: str, every: int, start: int = 1
) -> Counter[str]:
    return try_points(name, accumulate, retry=retry, point=point, every=every, start=start)


RETRY = {"on_nonfinite": "retry_fp32"}


def guarded(model: nn.Module, lr: float = 0.1, **config: Any) -> hg.Guard:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    return hg.Guard(model, optimizer, {"scale": {"init": 8.0}, **config})


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().square().mean()


def test_an_error_in_the_repeat_skips_the_step_and_leaves_no_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    guard = guarded(model, accumulate=2, skip=RETRY)
    repeats = 0

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        nonlocal repeats
        repeats += not torch.is_autocast_enabled(chosen_device().type)
        if repeats == 2:
            repeats += 1
            raise MemoryError
        return squares(model, batch)

    guard.step(loss, torch.ones(2, 4))
    assert guard.step(loss, torch.full((2, 4), 6e4)).action == "skip"
    assert model.weight.grad is None
    batch = torch.ones(2, 4) * 0.1
    weight = model.weight.detach().clone().requires_grad_()
    (true,) = torch.autograd.grad((batch @ weight.T).square().mean(), weight)
    guard.step(loss, batch)
    assert guard.step(loss, batch).grad_norm == pytest.approx(true.norm().item(), rel=2e-3)


def test_an_update_without_gradients_does_not_break_the_guard() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model["b"].parameters(), lr=0.1)
    guard = hg.Guard(model, optimizer, {"scale": {"init": 8.0}})
    with pytest.raises(UsageError, match="No parameter of the optimizer has a gradient"):
        guard.step(lambda m, x: squares(m["a"], x), torch.randn(2, 4))
    assert guard.step(lambda m, x: squares(m["b"], x), torch.randn(2, 4)).applied


@pytest.mark.on_standin
def test_an_interrupt_before_the_first_change_is_forgotten_and_one_after_it_is_refused() -> None:
    model = nn.Linear(4, 1)
    guard = guarded(model)
    optimizer: Any = guard.optimizers[0]
    step = optimizer.step

    def interrupted(change: bool) -> None:
        optimizer.step = step
        if change:
            with torch.no_grad():
                model.weight.add_(1.0)
        raise KeyboardInterrupt

    optimizer.step = lambda *_: interrupted(False)
    with pytest.raises(KeyboardInterrupt):
        guard.step(squares, torch.randn(2, 4))
    assert guard.step(squares, torch.randn(2, 4)).applied
    optimizer.step = lambda *_: interrupted(True)
    with pytest.raises(KeyboardInterrupt) as caught:
        guard.step(squares, torch.randn(2, 4))
    assert "partly applied" in caught.value.__notes__[0]
    with pytest.raises(UsageError, match="partly applied"):
        guard.step(squares, torch.randn(2, 4))
    guard.load_state_dict(guard.state_dict())
    assert guard.step(squares, torch.randn(2, 4)).applied


def test_gradients_of_another_guard_are_refused() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    guards = [guarded(generator), guarded(critic)]
    z = torch.randn(8, 2)
    assert guards[0].step(lambda g, b: squares(critic, g(b)), z).applied
    with pytest.raises(UsageError, match="gradients before the step begins"):
        guards[1].step(squares, z)
    critic.zero_grad()
    assert guards[1].step(squares, z).applied


class HalfBase(nn.Module):
    """A frozen half base with an FP32 adapter, as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).half().requires_grad_(False)
        self.adapter = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        half = x.to(self.base.weight.dtype)
        return self.base(half) + self.adapter(x).to(half.dtype)


@pytest.mark.on_standin
def test_a_retry_over_a_half_base_computes_in_fp32() -> None:
    torch.manual_seed(0)
    model, dtypes = HalfBase(), Recorder()
    model.base.register_forward_hook(lambda *args: dtypes.append(args[2].dtype))
    guard = guarded(model, 0.0, skip=RETRY)
    batch = torch.randn(4, 6)
    reference = HalfBase().float()
    reference.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    squares(reference, batch).backward()
    assert reference.adapter.weight.grad is not None

    def overflowing(model: nn.Module, batch: Tensor) -> Tensor:
        half = torch.is_autocast_enabled(chosen_device().type)
        return squares(model, batch) * (1e30 if half else 1) * 1e10

    outcome = guard.step(overflowing, batch)
    assert outcome.action == "retry_fp32"
    assert dtypes.take()[0::3] == [torch.float16, torch.float32], "two passes are between"
    assert model.base.weight.dtype is torch.float16
    true = reference.adapter.weight.grad.norm().item() * 1e10
    assert outcome.grad_norm == pytest.approx(true, rel=1e-6)


def test_a_parameter_replaced_inside_a_group_is_measured() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    guard = guarded(model)
    guard.step(squares, torch.randn(2, 4))
    model.weight = nn.Parameter(torch.randn(1, 4))
    guard.optimizers[0].param_groups[0]["params"][0] = model.weight
    batch = torch.randn(2, 4)
    (true,) = torch.autograd.grad(squares(model, batch), model.weight)
    assert guard.step(squares, batch).grad_norm == pytest.approx(true.norm().item(), rel=1e-2)


@pytest.mark.on_standin
@pytest.mark.usefixtures("between_looks")
def test_a_batch_changed_in_place_is_not_repeated_and_copied_from_then_on() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    guard = guarded(model, 0.0, scale={"init": 1.0}, skip=RETRY)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        hidden = model(batch.div_(10.0))
        return (hidden * hidden).float().mean()

    batch = torch.randn(4, 8) * 6000
    true = loss(model, batch.clone()).item()
    assert guard.step(loss, batch.clone()).action == "skip"
    outcome = guard.step(loss, batch.clone())
    assert outcome.action == "retry_fp32"
    assert outcome.loss == pytest.approx(true)


def test_a_precision_with_a_loss_scale_starts_at_its_initial_scale() -> None:
    guard = guarded(nn.Linear(4, 1), precision="bf16-mixed")
    guard.step(squares, torch.randn(2, 4))
    other = hg.Guard(guard.model, guard.optimizers, {"precision": "fp16-mixed"})
    other.load_state_dict(guard.state_dict())
    assert other.scaler.get_scale() == 65536.0
    guard.reconfigure(hg.GuardConfig.load({"precision": "fp16-mixed", "scale": {"init": 32.0}}))
    guard.step(squares, torch.randn(2, 4))
    assert guard.scaler.get_scale() == 32.0


class Sam(torch.optim.SGD):
    """Sharpness-aware minimization as people write it: its step asserts a closure that may be left out."""

    def first_step(self) -> None: ...

    def second_step(self) -> None: ...


def test_parts_that_cannot_work_are_refused() -> None:
    model, lazy = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(1))
    given = [*model.parameters(), nn.Parameter(torch.ones(2, dtype=torch.cfloat))]
    with pytest.raises(UsageError, match="no parameters"):
        hg.Guard(nn.Flatten(), torch.optim.SGD(model.parameters()))
    with pytest.raises(UsageError, match="needs a closure"):
        hg.Guard(model, Sam(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match="complex"):
        hg.Guard(model, torch.optim.SGD(given))
    with pytest.raises(UsageError, match="lazy"):
        hg.Guard(lazy, torch.optim.SGD(lazy[0].parameters(), lr=0.1))
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="neither copied nor pickled"):
            copied(guarded(model))


def main(every: int, *, on_ranks: bool) -> int:
    group = Ranks(2) if on_ranks else None
    total: Counter[str] = Counter()
    for case in itertools.product(MODELS, (1, 4), (False, True), POINTS):
        name, accumulate, retry, point = case
        if group is None:
            counted = [try_points(name, accumulate, retry=retry, point=point, every=every)]
        else:
            arguments = name, accumulate, retry, point, every
            counted = group.run(try_on_rank, *arguments, timeout=3600.0)
        total = sum(counted, total)
        print(*case, *map(dict, counted), flush=True)
    print(total.total(), "points:", dict(total))
    return 0 if set(total) <= {"never seen", "applied", "refused"} else 1


if __name__ == "__main__":  # [EVERY] [ranks]
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    sys.exit(main(*numbers[:1] or [1], on_ranks="ranks" in sys.argv))
