"""One call of a listed operation: the dtypes that its rule gives it, and its exact result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfguard.acceptance.error_bound import ACCELERATOR_ROUNDINGS, condition, error_bound
from halfguard.acceptance.operations import SAMPLES, make_arguments, operation, replace_tensors
from halfguard.autocast_ops import RULES, AutocastRule

FULL = torch.float32
LOWER_DTYPES = (torch.float16, torch.bfloat16)
ACCUMULATING = (AutocastRule.FP32_ACCUMULATE, AutocastRule.FP32_NORM)


@dataclass(frozen=True)
class Call:
    """An operation with the dtypes of its arguments and of the autocast region."""

    name: str
    given: tuple[torch.dtype, torch.dtype]  # of the first tensor, and of all others
    lower: torch.dtype

    @property
    def rule(self) -> AutocastRule:
        """The rule of the operation."""
        return RULES[self.name]

    @property
    def computed_in(self) -> torch.dtype:
        """The dtype to which the rule casts the arguments."""
        match self.rule:
            case AutocastRule.LOWER:
                return self.lower
            case AutocastRule.FP32:
                return FULL
            case AutocastRule.WIDEST:
                return FULL if FULL in self.given else self.lower
            case _:
                return self.given[0]

    @property
    def must_cast(self) -> bool:
        """True if autocast must cast an argument."""
        return any(dtype is not self.computed_in for dtype in self.given)

    @property
    def returned_in(self) -> torch.dtype:
        """The dtype of the result."""
        return FULL if self.rule in ACCUMULATING else self.computed_in

    def __str__(self) -> str:
        dtypes = " and ".join(short_name(dtype) for dtype in dict.fromkeys(self.given))
        return f"{dtypes} arguments under {short_name(self.lower)}"


def calls_of(name: str) -> list[Call]:
    """Return the calls that are made of an operation: alike in FP32 and 16 bits, mixed if that matters."""
    calls = []
    for lower in LOWER_DTYPES:
        given = [(FULL, FULL), (lower, lower)]
        if RULES[name] is AutocastRule.WIDEST:
            given += [(FULL, lower), (lower, FULL)]
        calls += [Call(name, dtypes, lower) for dtypes in given]
    return calls


class Reference:
    """The float64 side of an operation: arguments, exact results and their condition."""

    def __init__(self, name: str) -> None:
        self.sample = SAMPLES[name]
        self._function: Any = self.sample.exact or operation(name)
        self._arguments, self._inputs = make_arguments(self.sample)
        self._positions = {id(x): index for index, x in enumerate(self._inputs)}
        if RULES[name] is not AutocastRule.BANNED:
            self._condition = self._measure_condition()

    def arguments(self, call: Call) -> list[Any]:
        """Return the arguments of a call on the CPU."""
        return replace_tensors(self._arguments, lambda x: self._given(x, call))

    def error(self, call: Call, result: Tensor, place: torch.device) -> float:
        """Return the largest error of a result in units of its bound; infinite for NaN."""
        exact = self._exact(call)
        on_cpu = place.type == "cpu"
        stages = (on_cpu and self.sample.cpu_stages) or self.sample.stages
        bound = error_bound(
            exact,
            self._condition,
            terms=max(x.numel() for x in self._inputs),
            stages=stages,
            dtype=result.dtype,
            roundings=1 if on_cpu else ACCELERATOR_ROUNDINGS,
        )
        ratios = (result.double() - exact).abs() / bound
        return math.inf if bool(ratios.isnan().any()) else float(ratios.max())

    def _given(self, x: Tensor, call: Call) -> Tensor:
        """Return an argument in its dtype; targets and indices stay as they are."""
        position = self._positions.get(id(x))
        return x if position is None else x.to(call.given[min(position, 1)])

    def _exact(self, call: Call) -> Tensor:
        def rounded(x: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x
            return self._given(x, call).to(call.computed_in).double()

        return first_tensor(self._function(*replace_tensors(self._arguments, rounded)))

    def _measure_condition(self) -> Tensor:
        leaves = {id(x): x.clone().requires_grad_() for x in self._inputs}

        def double(x: Tensor) -> Tensor:
            return leaves[id(x)] if id(x) in leaves else x.double() if x.is_floating_point() else x

        arguments = replace_tensors(self._arguments, double)
        return condition(first_tensor(self._function(*arguments)), list(leaves.values()))


def first_tensor(result: Any) -> Tensor:
    """Return the result of an operation, or the first of several."""
    first: Tensor = result[0] if isinstance(result, tuple | list) else result
    return first


def short_name(dtype: torch.dtype) -> str:
    """Return FP32, FP16 or BF16."""
    names = {FULL: "FP32", torch.float16: "FP16", torch.bfloat16: "BF16"}
    return names.get(dtype, str(dtype).removeprefix("torch."))
