"""Healing: find the operation that keeps failing in half, prove an FP32 island for it, make it, and go on.

A bad step is repeated under ``find_first_nonfinite``, which names its producer. Once a producer has failed
``after`` times, or an audit raised an alarm, islands are tried on that very batch, cheapest first
(``trials.search``), and the first that are proven (``trials.proof``) are made. Ranks exchange what they
found and decide by the same facts, so that all make the same island before the same step.

Islands change between two steps only. One that is made between forward and backward would let checkpointing
compute other dtypes than were saved. If a producer fails again although it has its island, that island is
taken back, and the next one is tried.

Gradients that overflow while a lower loss scale can help are how a dynamic scale finds its level, in every
healthy run: they are no reason to heal.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from halfguard.dist.collectives import all_gather_object, rank
from halfguard.dist.wrapping import is_compiled, is_sharded, unwrap_model
from halfguard.errors import UsageError
from halfguard.guard.config import HealConfig
from halfguard.guard.healing.healing_log import HealingLog, describe_failure
from halfguard.guard.healing.memory import HealedFault, HealingMemory
from halfguard.guard.healing.plan_file import PlanFile
from halfguard.guard.healing.trial_steps import TrialSteps
from halfguard.guard.policy import NEUTRAL, Decision, Signals, can_help
from halfguard.guard.recorder import StepReport
from halfguard.guard.step_batches import StepBatches
from halfguard.guard.stepping.stepper import Stepper
from halfguard.journal import Journal
from halfguard.precision.modes import HALF_DTYPES
from halfguard.precision_names import Precision
from halfguard.records import Action, Cause
from halfguard.records.audit import AuditFinding, AuditReport
from halfguard.records.plan import AnyIsland, Island, PrecisionPlan
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.bench import StepBench, agree_on_producer
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.producer import Lines, Producer, name_of
from halfguard.trials.proof import BadStep
from halfguard.trials.search import Found, IslandSearch


def raise_if_unhealable(model: nn.Module) -> None:
    """Raise if trainable half weights are wrapped for several ranks: an island would make them FP32."""
    wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    if not wrapped and not is_sharded(model):
        return
    half = [n for n, p in model.named_parameters() if p.dtype in HALF_DTYPES and p.requires_grad]
    if half:
        wrapper = "DDP" if wrapped else "FSDP2"
        raise UsageError(
            f"heal cannot be used here because {len(half)} trainable parameters are 16-bit (the first is "
            f"{half[0]}) and {wrapper} has fixed their dtype. An island would convert some of them to FP32.",
            cure="Use precision 'fp16-mixed' with FP32 weights, or disable heal and apply the islands as a "
            "plan before the model is wrapped.",
        )


logger = logging.getLogger("halfguard")

_AFTER = 3  # bad steps of one operation, before an island is made for it
_OVERFLOWS = (Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW)
_IN_FP32 = (
    "the guard's precision is fp32, so the overflow is in an autocast region or a cast inside the model, "
    "which the guard cannot change. Remove it from the model, and set precision: fp16-mixed (in a "
    "framework: fp16=True, 16-mixed)"
)
_IN_VAIN = 32  # diagnoses without a healing, after which none are made any more


class Healing:
    """Heals one guarded run. ``copies`` are averaged models, which get the same islands."""

    def __init__(
        self,
        rules: HealConfig,
        stepper: Stepper,
        journal: Journal,
        *,
        copies: Sequence[nn.Module],
        lines: LineIslands,
        given: PrecisionPlan,
        run_dir: Path | None,
        hosted: bool,
        around: Callable[[], AbstractContextManager[object]],
    ) -> None:
        raise_if_unhealable(stepper.model)
        self._rules, self._stepper, self._device = rules, stepper, stepper.device
        self._lines, self._around, self._hosted = lines, around, hosted
        model = unwrap_model(stepper.model)
        self._applied = AppliedIslands(model, copies, lines, given.lines)
        self._memory = HealingMemory()
        self._in_fp32 = stepper.config.precision == "fp32"  # from the start, not as a remedy
        self._alarms: list[tuple[Producer, StepBatches]] = []  # of this rank, not followed yet
        stepper.has_alarm = lambda: bool(self._alarms)
        self._next_step = 0
        self._due = False  # the islands in force are not those of the memory
        self._plan = PlanFile(run_dir, given, stepper.config.precision, stepper.device)
        self._log = HealingLog(journal, self._plan)
        self._start_with(self._plan.read())

    # -- what the guard calls

    def notice(self, decision: Decision, seen: Signals, report: StepReport) -> None:
        """Look at a bad step that was refused, before it is retried. Every rank must call this."""
        if self._memory.stopped:
            return
        if self._in_fp32 and decision.cause in _OVERFLOWS:
            self._stop(report.step, _IN_FP32)
        if not self._concerns(decision, seen, report):
            return
        step = self._bad_step(report.batches, seen.scale)
        scale_can_help = self._scale_can_help(decision, seen, step)
        if scale_can_help and seen.scale <= NEUTRAL:
            return
        producer = self._agree_on_producer(step, report.step)
        if producer is None or (producer.phase == "backward" and scale_can_help):
            return
        fault = self._memory.of(producer.key)
        if fault is None:
            if self._memory.count(producer.key) >= _AFTER:
                self._heal(step, producer, report.step)
        elif 0 <= fault.since <= report.step:  # otherwise the step began before the island was made
            self._take_back(fault, producer, report.step)
            self._heal(step, producer, report.step)

    def audit(self, batches: StepBatches) -> AuditReport:
        """Audit batches as a step would run them, and heal what is found. Every rank must call this."""
        step = self._bad_step(batches)
        report = step.audit()
        if report.findings:
            self.alarm(report.findings, batches)
        return report

    def alarm(self, findings: Sequence[AuditFinding], batches: StepBatches) -> None:
        """Note what an audit of ``batches`` found on this rank; it may be called on one rank alone.

        A single rank heals at once. Several heal when the next step is decided, whose sum over all ranks says
        that there is an alarm.
        """
        found = [Producer.of(finding.culprit) for finding in findings]
        if batches.repeatable and not batches.changed_in_place:
            self._alarms += [(one, batches) for one in found if one is not None]
        if self._stepper.single_rank:
            self.follow_alarms(batches, max(self._next_step - 1, 0))

    def follow_alarms(self, batches: StepBatches, index: int) -> None:
        """Heal what audits found on any rank, after step ``index``.

        Every rank must call this, with a batch to try islands on.
        """
        alarms, self._alarms = self._alarms, []
        tried_on = alarms[0][1] if alarms else batches
        passes = len(tried_on.micro_batches) if alarms else 0
        everywhere = all_gather_object(([producer for producer, _ in alarms], passes))
        # An audit has one micro-batch, a step may have more. FSDP2 gathers in each, so all run as many.
        passes = max(count for _, count in everywhere)
        tried_on = replace(
            tried_on, micro_batches=list(islice(cycle(tried_on.micro_batches), passes))
        )
        for producer in chain.from_iterable(found for found, _ in everywhere):
            if self._memory.stopped:
                return
            self._follow_alarm(producer, tried_on, index)

    def _follow_alarm(self, producer: Producer, batches: StepBatches, index: int) -> None:
        fault = self._memory.of(producer.key)
        if fault is not None:
            if fault.since < 0:
                return  # it is not in force yet
            self._take_back(fault, producer, index)
        self._memory.count(producer.key)
        self._heal(self._bad_step(batches), producer, index)

    def _bad_step(self, batches: StepBatches, scale: float | None = None) -> BadStep:
        runner = TrialSteps(self._stepper, batches, self._lines, self._around)
        now = self._stepper.scaler.get_scale() if scale is None else scale
        return BadStep(runner, now, self._device)

    def apply_due(self, next_step: int) -> None:
        """Make the islands that were decided; call it between two steps only."""
        self._next_step = next_step
        if self._due:
            self._due = False
            self._applied.set(self._memory.islands)
            for fault in self._memory.healed:
                fault.since = next_step if fault.since < 0 else fault.since

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later healings depend on, as plain values."""
        return self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], next_step: int) -> None:
        """Restore the state of ``state_dict``, and make exactly its islands.

        The run continues as it did from there. Islands that the plan file has since then are made again at
        the same steps.
        """
        before, self._memory = self._memory.islands, HealingMemory.load(state)
        kept = set(map(name_of, self._memory.islands))
        later = [name for name in map(name_of, before) if name not in kept]
        if later:
            self._log.older_state(next_step, later)
        self._due = True
        self.apply_due(next_step)

    # -- the decision

    def _concerns(self, decision: Decision, seen: Signals, report: StepReport) -> bool:
        if decision.action is Action.HALT or self._stepper.config.precision == "fp32":
            return False
        found = report.outcome.fault_report
        if not report.repeatable or (found is not None and found.changed_in_place):
            return False
        if decision.cause is Cause.FORWARD_OVERFLOW:
            return True
        if decision.cause is not Cause.GRADIENT_OVERFLOW:
            return False
        # Infinite gradients, and no NaN, at a scale that enlarges them: the scale is too high.
        is_scaled = seen.scale > NEUTRAL and can_help(seen, self._stepper.config)
        return math.isnan(seen.grad_norm) or not is_scaled

    def _scale_can_help(self, decision: Decision, seen: Signals, step: BadStep) -> bool:
        """Return whether a lower scale may help; below a scale of 1, the step is run at the lowest.

        An infinite derivative is infinite at every scale, but the gradients of a sum may be too large.
        """
        config = self._stepper.config
        if decision.cause is not Cause.GRADIENT_OVERFLOW or not can_help(seen, config):
            return False
        return seen.scale > NEUTRAL or step.is_finite_at(config.scale.floor)

    def _agree_on_producer(self, step: BadStep, index: int) -> Producer | None:
        producer, errors = agree_on_producer(step, self._device)
        self._memory.in_vain += 1
        if errors:
            self._stop(index, f"a failed step could not be repeated for analysis ({errors[0]})")
            return None
        if self._memory.in_vain > _IN_VAIN:
            self._stop(index, f"none of the last {_IN_VAIN} failed steps led to an island")
            return None
        return producer

    def _heal(self, step: BadStep, producer: Producer, index: int) -> None:
        memory = self._memory
        if producer.key in memory.given_up:
            return
        left = self._rules.islands - len(memory.healed)
        if left < 1:
            self._stop(
                index, f"the limit of {self._rules.islands} islands (heal.islands) is reached"
            )
            return
        finite, found = step.is_finite_in_fp32(), Found()
        if finite:
            lines: Lines = "of modules" if self._hosted else "all"
            lines = "none" if is_compiled(self._stepper.model) else lines
            bench = StepBench(
                step,
                self._applied,
                unwrap_model(self._stepper.model),
                self._device,
                lines=lines,
                rescaling=not Precision(self._stepper.config.precision).needs_master_weights,
            )
            if self._due and bench.prove(memory.islands, producer).holds:
                return  # by an island that is decided, and not in force yet
            tried = memory.tried.get(producer.key, [])
            found = IslandSearch(bench, memory.islands, tried).run(producer, left)
        if not found.islands:
            memory.given_up.append(producer.key)
            self._log.not_found(
                index, producer, finite_in_fp32=finite, error=step.error, found=found
            )
            return
        for island, cause in found.islands:
            self._decide(island, cause, index, found)
        self._plan.write(memory.islands)

    def _decide(self, island: AnyIsland, producer: Producer, index: int, found: Found) -> None:
        failure = describe_failure(producer, self._memory.counts.get(producer.key, 1))
        island = island.model_copy(
            update={"reason": f"{failure} The island was added at step {index}."}
        )
        self._memory.healed.append(HealedFault(island, producer.key))
        self._memory.in_vain = 0
        self._due = True
        self._log.applied(index, producer, island, failure, found)

    def _take_back(self, fault: HealedFault, producer: Producer, index: int) -> None:
        self._memory.take_back(fault)
        self._due = True
        self._plan.write(self._memory.islands)
        self._log.taken_back(index, producer, name_of(fault.island))

    def _stop(self, index: int, why: str) -> None:
        self._memory.stopped = True
        self._log.stopped(index, why)

    def _start_with(self, islands: Sequence[AnyIsland]) -> None:
        """Make the islands that an earlier run in this folder ended with."""
        if not islands:
            return
        modules = [island for island in islands if isinstance(island, Island)]
        unknown = [one.module for one in modules if not self._applied.has_modules(one)]
        if unknown:
            model = type(unwrap_model(self._stepper.model)).__name__
            raise UsageError(
                f"The plan {self._plan} of an earlier run names {', '.join(unknown)}, but {model} has no "
                "such module. Nothing was changed.",
                cure="Use a separate run_dir for each model, or delete the plan.",
            )
        self._memory.healed = [HealedFault(island) for island in islands]
        self._due = True
        self.apply_due(next_step=0)
        if not rank():
            names = ", ".join(map(name_of, islands))
            logger.info(
                "running in FP32 from the start, as set in the plan %s: %s", self._plan, names
            )
