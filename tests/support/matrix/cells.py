"""One cell of the matrix: a guarded run, and the run by hand that it must equal bit for bit.

A run has six healthy iterations, the fault, and three more iterations. The reference of each fault:

- healthy: the loop by hand, with torch's scaler;
- NaN batch: the loop by hand that never saw the batch;
- overflow: the loop by hand, in which torch's scaler skips the step and halves the scale. What a careful loop
  does then is added: it puts BatchNorm's statistics and hidden states back, and holds its scheduler;
- retry: the loop by hand with exactly that step in FP32, and the scale halved;
- rollback: the loop by hand up to the last good snapshot, then with half the learning rate, without the bad
  batches and those that were undone. A hidden state stays as it was before the bad batches.

Every iteration has a seed of its own, because a run that never saw a batch has drawn no numbers for it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch

import halfguard as hg
from halfguard.errors import UsageError
from tests.guard.helper import frozen, same
from tests.support.matrix.networks import OVERFLOWING, Batch, make_batch
from tests.support.matrix.optimizers import OPTIMIZERS
from tests.support.matrix.shapes import SHAPES, Scaler, Shape
from tests.support.models import tensors_of

Fault = Literal["healthy", "NaN batch", "overflow", "retry", "rollback"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
BITWISE, REFUSED = "bitwise", "refused"

BEFORE, AFTER = 6, 3
SCALE, GROWTH_INTERVAL, LR_FACTOR = 4096.0, 4, 0.5
PLANTED = 1  # the micro-batch with the fault, the only one if there is one


def expected_verdict(shape: str, fault: Fault) -> str:
    """Return ``refused`` where a step cannot be repeated, and ``bitwise`` everywhere else."""
    return REFUSED if fault == "retry" and not SHAPES[shape].repeatable else BITWISE


def sampled_cells() -> list[tuple[str, str, Fault]]:
    """Return every shape with every optimizer, each with one fault; each fault is met equally often."""
    return [
        (shape, optimizer, FAULTS[(i + j) % len(FAULTS)])
        for i, shape in enumerate(SHAPES)
        for j, optimizer in enumerate(OPTIMIZERS)
    ]


def judge(shape: str, optimizer: str, fault: Fault, config: dict[str, Any] | None = None) -> str:
    """Run a cell; return ``bitwise``, ``refused``, or a description of the third outcome.

    ``config`` changes the guard's configuration.
    """
    torch.manual_seed(0)
    run = SHAPES[shape](OPTIMIZERS[optimizer])
    initial = _weights(run)
    actions: list[str] = []
    try:
        found = _guarded_run(run, fault, config or {}, actions)
    except UsageError as error:
        return _judge_refusal(error, untouched=same(initial, _weights(run)))
    except Exception as error:  # noqa: BLE001 - any other exception is the third outcome
        return f"{type(error).__name__}: {error}"
    planned = _planned_actions(SHAPES[shape], fault)
    if actions != planned:
        return f"the actions are {actions}, not {planned}"
    return _compare(_reference(shape, optimizer, fault), found)


def _judge_refusal(error: UsageError, *, untouched: bool) -> str:
    if untouched and error.cure:
        return REFUSED
    return f"refused after weights had changed, or without a cure: {error}"


def _compare(expected: Any, found: Any) -> str:
    left, right = tensors_of(expected), tensors_of(found)
    paths = sorted(left.keys() | right.keys())
    nothing = object()
    different = [
        path for path in paths if not same(left.get(path, nothing), right.get(path, nothing))
    ]
    if not different:
        return BITWISE
    return f"{len(different)} of {len(paths)} values differ, among them {', '.join(different[:5])}"


def _weights(run: Shape) -> Any:
    return frozen([list(run.model.parameters()), [o.state_dict() for o in run.optimizers]])


def _planned_actions(shape: type[Shape], fault: Fault) -> list[str]:
    bad = {
        "healthy": [],
        "NaN batch": ["skip"] * shape.updates,
        "overflow": ["skip"] * shape.updates,
        "retry": ["retry_fp32"],
        "rollback": ["skip"] * (2 * shape.updates - 1) + ["roll_back"],
    }[fault]
    return ["apply"] * (BEFORE * shape.updates) + bad + ["apply"] * (AFTER * shape.updates)


# -- the run with the guard


def _guarded_run(run: Shape, fault: Fault, changes: dict[str, Any], actions: list[str]) -> Any:
    single = len(run.optimizers) == 1 and isinstance(run.optimizers[0], torch.optim.Optimizer)
    guard = hg.Guard(
        run.model,
        run.optimizers[0] if single else run.optimizers,
        _config(run, fault) | changes,
        scheduler=run.scheduler,
        ema=run.ema,
    )
    for iteration in range(BEFORE + _bad_iterations(fault) + AFTER):
        _begin(run, iteration)
        outcomes = run.guarded(guard, _batches(run, iteration, fault))
        actions += [o.action.value for o in outcomes if o.action.value != "accumulate"]
    return frozen(run.state(guard.scaler))


def _config(run: Shape, fault: Fault) -> dict[str, Any]:
    config = {"scale": {"init": SCALE, "growth_interval": GROWTH_INTERVAL}, **run.config}
    if fault == "retry":
        config["skip"] = {"on_nonfinite": "retry_fp32"}
    if fault == "rollback":
        config["skip"] = {"max_consecutive": 2 * run.updates}
        config["recovery"] = {"every": 4 * run.updates}  # half of them confirm a snapshot
    return config


# -- the run by hand


def _reference(shape: str, optimizer: str, fault: Fault) -> Any:
    seen = SHAPES[shape].last_good if fault == "rollback" else BEFORE
    run, scaler = _run_by_hand(shape, optimizer, seen)
    if fault == "overflow":
        _step_that_is_skipped(run, scaler)
    elif fault == "retry":
        _step_in_fp32(run, scaler)
    elif fault == "rollback":
        run.prepare(seen)
        run.keep_from(_run_by_hand(shape, optimizer, BEFORE)[0])
        run.lr_cut = LR_FACTOR
        run.multiply_rates(LR_FACTOR)
    first = BEFORE + _bad_iterations(fault)
    for iteration in range(first, first + AFTER):
        _step_by_hand(run, scaler, iteration)
    return frozen(run.state(scaler))


def _run_by_hand(shape: str, optimizer: str, iterations: int) -> tuple[Shape, Scaler]:
    torch.manual_seed(0)
    run = SHAPES[shape](OPTIMIZERS[optimizer])
    scaler = Scaler("cpu", init_scale=SCALE, growth_interval=GROWTH_INTERVAL)
    for iteration in range(iterations):
        _step_by_hand(run, scaler, iteration)
    return run, scaler


def _step_by_hand(run: Shape, scaler: Scaler, iteration: int) -> None:
    _begin(run, iteration)
    assert run.by_hand(scaler, _batches(run, iteration, "healthy")), "no fault was planted here"


def _step_in_fp32(run: Shape, scaler: Scaler) -> None:
    _begin(run, BEFORE)
    with run.half_parts_in_fp32():
        run.by_hand(Scaler("cpu", enabled=False), _batches(run, BEFORE, "retry"))
    after_overflow = {"scale": scaler.get_scale() * 0.5, "_growth_tracker": 0}
    scaler.load_state_dict(scaler.state_dict() | after_overflow)


def _step_that_is_skipped(run: Shape, scaler: Scaler) -> None:
    buffers = frozen(dict(run.model.named_buffers()))
    _begin(run, BEFORE)
    assert not run.by_hand(scaler, _batches(run, BEFORE, "overflow")), "nothing overflowed"
    for name, buffer in run.model.named_buffers():
        buffer.copy_(buffers[name])  # torch leaves the batch in BatchNorm's statistics


# -- both


def _bad_iterations(fault: Fault) -> int:
    return {"healthy": 0, "rollback": 2}.get(fault, 1)


def _begin(run: Shape, iteration: int) -> None:
    run.prepare(iteration)
    torch.manual_seed(1000 + iteration)


def _batches(run: Shape, iteration: int, fault: Fault) -> list[Batch]:
    batches = [make_batch(100 * iteration + index) for index in range(run.micro_batches)]
    if BEFORE <= iteration < BEFORE + _bad_iterations(fault):
        planted = batches[min(PLANTED, len(batches) - 1)]
        if fault in {"overflow", "retry"}:
            planted["weight"].fill_(OVERFLOWING)
        else:
            planted["x"][1, 2] = torch.nan
    return batches
