"""Check every operation of CUDA's autocast lists: emulation and device, dtypes in and out, and the result.

Each operation is called with FP32, with 16-bit and (where the widest dtype decides) with mixed arguments.
Three sources must agree on the dtypes: the list, the emulation on a CPU, and the device's own autocast.
The results of both must be within ``error_bound`` of float64. On a CPU there is no third source: torch's
autocast for the CPU has other rules by design, so only the emulation is checked there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halfguard.acceptance.autocast_call import (
    Call,
    Reference,
    calls_of,
    first_tensor,
    short_name,
)
from halfguard.acceptance.operations import SAMPLES, operation, replace_tensors
from halfguard.acceptance.setting import Cases, NotRunError, Setting
from halfguard.autocast_ops import RULES, AutocastRule
from halfguard.precision.emulation import emulate_autocast
from halfguard.records.acceptance import AcceptanceCase

NAME = "autocast"
CLAIM = (
    "Every operation of CUDA's autocast lists runs in the listed dtypes, emulated and on the device, and its "
    "result is within rounding error of float64."
)
_REFUSAL = "unsafe to autocast"


class _FirstCasts(TorchDispatchMode):
    """Notes the first cast of each argument before anything is computed: it is autocast's own."""

    def __init__(self, arguments: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        tensors = (x for x in tree_leaves(arguments) if isinstance(x, Tensor))
        self._uncast = {id(x) for x in tensors if x.is_floating_point()}
        self.dtypes: set[torch.dtype] = set()
        self._computing = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._computing |= func is not torch.ops.aten._to_copy.default
        if not self._computing and id(args[0]) in self._uncast:
            self._uncast.remove(id(args[0]))
            self.dtypes.add(result.dtype)
        return result


@dataclass(frozen=True)
class _Observed:
    """The behaviour of a call; ``result`` is None if it raised."""

    casts: set[torch.dtype]
    result: Tensor | None
    error: str = ""
    no_kernel: bool = False


def run(setting: Setting) -> Cases:
    """Yield a case for each operation."""
    if setting.device.type == "mps":
        raise NotRunError("Autocast for MPS has lists of its own; halfguard emulates CUDA's.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the listed operations are deprecated
        for name in RULES:
            yield _check(name, setting.device)


def _check(name: str, device: torch.device) -> AcceptanceCase:
    """Make every call of an operation, emulated and on the device."""
    reference, calls = Reference(name), calls_of(name)
    places = list(dict.fromkeys([torch.device("cpu"), device]))
    problems, missing = list[str](), ""
    worst = dict.fromkeys(places, 0.0)
    for call in calls:
        for place in places:
            seen = _observe(call, reference, place)
            if seen.result is None and place == device and _may_be_missing(seen, call, device):
                missing = seen.error
                if place.type != "cpu" or not reference.sample.only_cuda:
                    continue  # on a CPU, the casts before the missing kernel are still checked
            problem, error = _judge(call, reference, seen, place)
            where = "emulated on the CPU" if place.type == "cpu" else f"on {place.type}"
            problems += [f"{where}, {call}: {problem}"] if problem else []
            worst[place] = max(worst[place], error)
    return AcceptanceCase(
        name=name,
        status="failed" if problems else "not run" if missing else "passed",
        detail=problems[0] if problems else missing,
        figures={
            "calls": len(calls),
            "error over bound": worst[device],
            "emulated error over bound": worst[places[0]],
        },
    )


def _may_be_missing(seen: _Observed, call: Call, device: torch.device) -> bool:
    """Return whether a device may lack the operation: all CUDA devices have all but a few of them."""
    return SAMPLES[call.name].only_cuda or (seen.no_kernel and device.type != "cuda")


def _observe(call: Call, reference: Reference, place: torch.device) -> _Observed:
    arguments = replace_tensors(reference.arguments(call), lambda x: x.to(place))
    context: AbstractContextManager[Any] = (
        emulate_autocast("cuda", dtype=call.lower)
        if place.type == "cpu"
        else torch.autocast(place.type, dtype=call.lower)
    )
    with torch.no_grad(), _FirstCasts(arguments) as first, context:
        try:
            result = first_tensor(operation(call.name)(*arguments))
        except NotImplementedError:
            missing = f"torch has no kernel for it on {place.type}"
            return _Observed(first.dtypes, None, missing, no_kernel=True)
        except RuntimeError as error:
            return _Observed(first.dtypes, None, _first_line(error))
    return _Observed(first.dtypes, result.cpu())


def _judge(
    call: Call, reference: Reference, seen: _Observed, place: torch.device
) -> tuple[str, float]:
    """Return what is wrong with a call, if anything, and its error over the bound."""
    if call.rule is AutocastRule.BANNED:
        return ("" if _REFUSAL in seen.error else "autocast does not refuse it"), 0.0
    # An argument that has the right dtype may be cast by the operation itself, as attention does.
    if call.must_cast and seen.casts != {call.computed_in}:
        found = " and ".join(sorted(map(short_name, seen.casts))) or "nothing"
        return f"autocast casts to {found}, not to {short_name(call.computed_in)}", 0.0
    if seen.result is None:
        return ("" if seen.no_kernel and reference.sample.only_cuda else seen.error), 0.0
    if seen.result.dtype is not call.returned_in:
        found, wanted = short_name(seen.result.dtype), short_name(call.returned_in)
        return f"it returns {found}, not {wanted}", 0.0
    error = reference.error(call, seen.result, place)
    return ("" if error <= 1 else f"its error is {error:.3g} times the bound"), error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
