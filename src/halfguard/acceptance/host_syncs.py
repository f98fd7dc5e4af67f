"""Check that a healthy guarded step waits for the device as often as the bare loop, and never more.

Operations that make the host wait are counted at torch's dispatcher: reads of a number, results whose size
the device decides, and copies between host and device that block. Where the device can raise instead
(torch.cuda's ``set_sync_debug_mode``), guarded steps also run under that. On a CPU nothing waits, and reads
through ``tolist`` do not reach the dispatcher, so a CPU run shows less.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.acceptance.jobs import (
    FUSED,
    MAX_NORM,
    OPTIMIZERS,
    bare_step,
    loss_fn,
    make_batch,
    make_model,
)
from halfguard.acceptance.setting import Cases, Setting, wait_for
from halfguard.guard.guard import Guard
from halfguard.precision_names import Precision
from halfguard.records.acceptance import AcceptanceCase
from halfguard.step.random_state import seeded

NAME = "host syncs"
CLAIM = "A healthy guarded step makes no host sync that the bare loop does not make."

MODEL, SCALE, WARM_UP, COUNTED = "MLP with BatchNorm", 64.0, 4, 4
_READS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}
_PACKAGE = str(Path(__file__).parents[1])

Step = Callable[[], object]


class WaitCounter(TorchDispatchMode):
    """Counts the operations after which the host must wait for a device, by name.

    An optimizer keeps the number of its steps on the host, and reads it without waiting: not counted.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        values = [value for state in optimizer.state.values() for value in state.values()]
        on_host = (x for x in values if isinstance(x, Tensor) and x.device.type == "cpu")
        self._step_counts = {id(x) for x in on_host if x.numel() == 1}
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        result = func(*args, **kwargs)
        reads = name in _READS and id(args[0]) not in self._step_counts
        if reads or _blocking_copy(name, args, kwargs, result):
            self.waits[name] += 1
        return result


def _blocking_copy(name: str, args: Any, kwargs: Any, result: Any) -> bool:
    if name not in ("_to_copy", "copy_") or not isinstance(result, Tensor):
        return False
    source = args[0] if name == "_to_copy" else args[1]
    if (source.device.type == "cpu") == (result.device.type == "cpu"):
        return False
    asynchronous = bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))
    # From the device to memory that is not pinned, the host waits although it was told not to.
    return not asynchronous or (result.device.type == "cpu" and not result.is_pinned())


def run(setting: Setting) -> Cases:
    """Yield a case for each kind of optimizer, and one under the device's own detector."""
    for optimizer, precision in (
        (FUSED, Precision.FP16_MIXED),
        (FUSED, Precision.BF16_MIXED),
        ("AdamW foreach", Precision.FP16_MIXED),
        ("SGD", Precision.FP16_MIXED),
    ):
        with seeded(0):
            yield _count(setting.device, optimizer, precision)
    if hasattr(setting.module, "set_sync_debug_mode"):
        with seeded(0):
            yield _under_detector(setting)


def _count(device: torch.device, optimizer: str, precision: Precision) -> AcceptanceCase:
    bare = _waits(device, *_bare_steps(device, optimizer, precision))
    guarded = _waits(device, *_guarded_steps(device, optimizer, precision))
    extra = ", ".join(f"{count} more {name}" for name, count in (guarded - bare).items())
    problem = f"in {COUNTED} steps: {extra}" if guarded.total() > bare.total() else ""
    return AcceptanceCase.judged(
        f"{optimizer}, {precision.value}",
        problem,
        waits_per_bare_step=bare.total() / COUNTED,
        waits_per_guarded_step=guarded.total() / COUNTED,
    )


def _waits(device: torch.device, step: Step, optimizer: Optimizer) -> Counter[str]:
    for _ in range(WARM_UP):  # optimizers make their state in the first step
        step()
    counter = WaitCounter(optimizer)
    with counter:
        for _ in range(COUNTED):
            step()
    wait_for(device)
    return counter.waits


def _bare_steps(
    device: torch.device, optimizer: str, precision: Precision
) -> tuple[Step, Optimizer]:
    model, batch = make_model(MODEL, device), make_batch(0, device)
    made = OPTIMIZERS[optimizer](model.parameters())
    enabled = precision.needs_loss_scale
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, enabled=enabled)
    return lambda: bare_step(model, made, scaler, [batch], precision), made


def _guarded_steps(
    device: torch.device, optimizer: str, precision: Precision
) -> tuple[Step, Optimizer]:
    model, batch = make_model(MODEL, device), make_batch(0, device)
    config = {
        "precision": precision.value,
        "clip": {"max_norm": MAX_NORM},
        "scale": {"init": SCALE},
        "spike": {"sigma": 1000.0, "warm_up": 2},
    }
    made = OPTIMIZERS[optimizer](model.parameters())
    guard = Guard(model, made, config)
    return lambda: guard.step(loss_fn, batch), made


def _under_detector(setting: Setting) -> AcceptanceCase:
    name = f'{FUSED}, under set_sync_debug_mode("error")'
    step, _ = _guarded_steps(setting.device, FUSED, Precision.FP16_MIXED)
    for _ in range(WARM_UP):
        step()
    try:
        with _raising_on_waits(setting.module):
            for _ in range(COUNTED):
                step()
    except RuntimeError as error:
        return AcceptanceCase(name=name, status="failed", detail=_place(error))
    finally:
        wait_for(setting.device)
    return AcceptanceCase(name=name, figures={"steps": COUNTED})


@contextmanager
def _raising_on_waits(module: Any) -> Iterator[None]:
    module.set_sync_debug_mode("error")
    try:
        yield
    finally:
        module.set_sync_debug_mode("default")


def _place(error: RuntimeError) -> str:
    """Return the error with the line of halfguard that waited."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_PACKAGE)
    ]
    last = frames[-1]
    where = Path(last.filename).relative_to(_PACKAGE).as_posix()
    return f"{str(error).splitlines()[0]} (halfguard/{where}:{last.lineno})"
