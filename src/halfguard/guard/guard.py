"""The guard of a training loop: every update is either applied or skipped completely.

The guard does what a careful loop does (autocast, scaled backward, unscale, clip, step, new scale, zero_grad)
and decides on the device whether the update may happen (``gate``). The measurements of a step are a row of
four numbers. The policy reads that row on the host: at once if the answer is there anyway, a few steps later
if waiting would stall the device. It decides what else to do: repeat the step in FP32, roll back to a
snapshot, or stop.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.dist.collectives import all_agree, all_gather_object
from halfguard.dist.wrapping import unwrap_model
from halfguard.errors import UsageError
from halfguard.guard import policy
from halfguard.guard.config import GuardConfig
from halfguard.guard.consensus import Gradients
from halfguard.guard.evidence import describe_recovery, explain, halt_error
from halfguard.guard.fault_report import batches_ok, investigate
from halfguard.guard.metrics_log import LastStep, LogFunction, MetricsLog
from halfguard.guard.recorder import Recorder, StepReport
from halfguard.guard.scheduler_and_ema import Scheduler, SchedulerAndEma, WeightAverage
from halfguard.guard.step_batches import (
    BatchCopy,
    MicroBatch,
    StepBatches,
    copy_containers,
    loss_in_fp32,
    tensor_versions,
    trainable_loss,
)
from halfguard.guard.stepping.forward_pass import ForwardPass, Transaction
from halfguard.guard.stepping.gate import PendingRows, read_signals
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.guard.stepping.stepper import Stepper
from halfguard.guard.unsupported import raise_if_unsupported
from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision
from halfguard.records import Action, Cause, Summary
from halfguard.records.plan import PrecisionPlan
from halfguard.step.loss import LossFunction
from halfguard.step.random_state import (
    capture_random_state,
    generator_state,
    portable_random_state,
    restore_random_state,
)

# Healing, recovery, watching and islands are three times as much code as the rest, and a configuration must
# switch them on. So each is imported where it is used.
if TYPE_CHECKING:
    from halfguard.guard.healing.healing import Healing
    from halfguard.guard.recovery.recovery import Recovery
    from halfguard.guard.watching.watching import Watching
    from halfguard.records.audit import AuditReport
    from halfguard.trials.line_islands import LineIslands

logger = logging.getLogger("halfguard")

_HALF_APPLIED = (
    "An earlier step raised an error after the optimizer had changed some weights, so the step is "
    "only partly applied."
)
_RELOAD = (
    "Load a checkpoint of the model and the optimizer and call guard.load_state_dict(), or call "
    "guard.resume()."
)
# Steps after which a row is read, if reading it at once would stall the device.
_LAG = 2
_PLACES = 4  # machines that are named

Decided = tuple[policy.Decision, policy.Signals]


class Guard:
    """Guards the training steps of a model and its optimizers.

    Call ``guard.step(loss_fn, batch)``, or call ``autocast``, ``backward`` and ``update`` in your own loop.
    ``config`` is the name of a preset, a YAML file, a mapping or a ``GuardConfig``. ``scheduler`` (one
    scheduler or a list) and ``ema`` advance only when a step is applied. ``run_dir`` is the folder for the
    journal and incidents. ``entry`` names the function that describes the job, for ``halfguard replay``.
    ``log(metrics, step)`` is the logging function of a tracker. It is called on rank 0 every ``log_every``
    steps, at every unusual step, and when the loss scale changes.
    """

    # A framework runs backward, clips, clears gradients and steps schedulers.
    _hosted: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        config: GuardConfig | Mapping[str, Any] | str | Path = "default",
        *,
        scheduler: Scheduler | Sequence[Scheduler] | None = None,
        ema: WeightAverage | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        entry: str = "",
        log: LogFunction | None = None,
        log_every: int = 50,
    ) -> None:
        self.config = self._initial_config = GuardConfig.load(config)
        watched = self.config.watch is not None
        metrics_log = None if log is None else MetricsLog(log, log_every, watched=watched)
        self.model = model
        self.optimizers = _as_list(optimizer)
        self._scheduler_and_ema = SchedulerAndEma(
            model, self.optimizers, scheduler, ema, stepped_by_host=self._hosted
        )
        raise_if_unsupported(model, self.optimizers)
        plan = PrecisionPlan()
        if self.config.plan is not None:
            from halfguard.precision.islands import make_islands

            plan = PrecisionPlan.load(self.config.plan)
            make_islands(model, plan)
        self._stepper = Stepper(model, self.optimizers, self.config, hosted=self._hosted)
        self._stepper.on_unrepeatable = self._report_unrepeatable
        self._stepper.compares_ranks = self._compares_ranks
        self.scaler = self._stepper.scaler
        self.epoch = 0
        self.step_index = 0  # update attempts so far
        self.batch_index = 0  # batches of this epoch so far
        self._batches = StepBatches()
        self._transaction = Transaction(self._abandon)
        self._begun = False
        self._in_forward = False  # a forward pass was begun, and no backward pass since
        self._settled = True  # the scheduler has followed the last decision
        self._told: set[str] = set()  # what is reported once
        self._attached_lines = False
        self._repeats = 0  # in FP32
        self._culprits: set[str] = set()  # of steps that were run again as they were
        self._copies_batches = False  # loss_fn was seen to change a batch in place
        self._policy = policy.PolicyState()
        self._pending: PendingRows[StepReport] = PendingRows(self._lag)
        folder = None if run_dir is None else Path(run_dir)
        self._recorder = Recorder(self.config, self._stepper.device, folder, entry, metrics_log)
        self._lines = self._make_lines(plan)
        self._healing = self._make_healing(plan, folder)
        self._recovery = self._make_recovery(folder)
        self.watching = self._make_watching()
        if self._hosted:
            self._attach_lines()

    # -- the form with a loss function

    def step(self, loss_fn: LossFunction, batch: Any, *, about: Any = None) -> StepOutcome:
        """Run forward, backward and, once ``accumulate`` batches are complete, the update.

        ``about`` describes the batch in the journal if the step fails.
        """
        self.batch_index += 1
        with self._transaction:
            if self._batches.micro_batches:
                self._stepper.step_state.resume()
            self._stepper.step_state.expect(loss_fn)
            self._begin_step()
            micro = self._micro_batch(loss_fn, batch, about)
            with self._stepper.micro_batch(self._batches), self._lines_in_fp32:
                device = self._stepper.device.type
                with autocast(self.config.precision, device), self._observing:
                    loss = self._loss(micro, batch)
                if not self._batches.micro_batches:
                    self._stepper.raise_if_gradients_of_loss_function()
                self._backward(loss, micro)
            if len(self._batches.micro_batches) < self.config.accumulate:
                self._stepper.step_state.pause()
                return StepOutcome(micro_loss=loss.detach())
            if self._is_verifying:
                self._verify()
            return self._update(self.optimizers)

    @property
    def _is_verifying(self) -> bool:
        """True if this step is run again before it is applied; on all ranks alike."""
        every = 0 if self.config.verify is None else self.config.verify.every
        return every > 0 and self.step_index > 0 and self.step_index % every == 0

    def _verify(self) -> None:
        from halfguard.guard.stepping.two_passes import find_wrong_ranks

        found = find_wrong_ranks(self._stepper, self._batches, self._loss_again)
        if found is None and self._first_time("unverifiable"):
            self.note(
                "verify: two repeats of a healthy step differ because an operation is not "
                "deterministic (see torch.use_deterministic_algorithms). This is reported only "
                "once."
            )
        elif found:
            where = self._places(found)
            self.note(
                "verify: a finite step differs from two repeats, which are bit-identical to each other "
                f"({where}). The step is applied. If this happens again, test the hardware of that machine."
            )

    def _loss(self, micro: MicroBatch, batch: Any) -> Tensor:
        loss_fn = micro.loss_fn
        assert loss_fn is not None  # noqa: S101 - step() gave it
        if self.config.precision == self._initial_config.precision:
            return trainable_loss(loss_fn(self.model, batch))
        # A remedy has put the run into FP32; its batches may be 16-bit as before.
        given = replace(micro, batch=batch)  # that of ``micro`` is kept for a repeat
        return loss_in_fp32(given, lambda one: trainable_loss(loss_fn(self.model, one)))

    def _micro_batch(self, loss_fn: LossFunction, batch: Any, about: Any) -> MicroBatch:
        """Return a batch with everything to repeat it."""
        repeats = self.config.heal is not None
        retries = repeats or self.config.skip.on_nonfinite == "retry_fp32"
        sampled = self.watching is not None and self.watching.is_sampling
        sampled = sampled or self._is_verifying
        if not retries and self._recorder.incidents is None and not sampled:
            return MicroBatch(batch, about, loss_fn)
        rng = capture_random_state()
        if not retries and not sampled:
            return MicroBatch(batch, about, loss_fn, rng)
        state = self._stepper.step_state
        own = tuple((generator, generator_state(generator)) for generator in state.generators)
        # The repeat must see the batch that was given.
        containers: dict[int, Any] = {}
        kept = copy_containers(batch, containers)
        if self._copies_batches or state.changes_batch or state.is_looking or sampled:
            given = BatchCopy(batch, containers.keys())
            if given.is_complete:
                return MicroBatch(batch, about, loss_fn, rng, own, given=given)
        # Containers are copied, tensors are watched.
        return MicroBatch(kept, about, loss_fn, rng, own, tensor_versions(batch))

    # -- the form for a loop that keeps its own forward pass

    def autocast(self) -> ForwardPass:
        """Return the autocast context for a forward pass.

        It can be entered again for every batch. Entering it begins a step, unless the model is in eval mode.
        """
        self._attach_lines()
        return ForwardPass(self._begin_forward, self._abandon)

    def _attach_lines(self) -> None:
        """Apply lines of the plan inside modules: here the guard does not run the loss function."""
        if self._lines is not None and not self._attached_lines:
            from halfguard.trials.plans import warn_about_lines

            self._attached_lines = True
            self._lines.attach(unwrap_model(self.model))
            warn_about_lines(self._lines.unattached)

    def _begin_forward(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any]
        context = autocast(self.config.precision, self._stepper.device.type)
        # Evaluation begins no step: one rank may do it alone, and beginning may need the other ranks.
        if torch.is_grad_enabled() and any(part.training for part in self.model.modules()):
            self._begin_step()
            if self.watching is not None:
                context = self.watching.observing(context)
        return context

    def backward(
        self, loss: Tensor, *, batch: Any = None, about: Any = None, retain_graph: bool = False
    ) -> None:
        """Run the scaled backward pass of one micro-batch. The loss is divided by ``accumulate``."""
        if self.config.skip.on_nonfinite == "retry_fp32":
            raise _needs_forward_pass("skip.on_nonfinite='retry_fp32'")
        for name in ("heal", "verify"):
            if getattr(self.config, name) is not None:
                raise _needs_forward_pass(name)
        self.batch_index += 1
        with self._transaction:
            self._begin_step(late=True)
            self._stepper.raise_if_unscaled()
            self._backward(
                trainable_loss(loss), MicroBatch(batch, about), retain_graph=retain_graph
            )

    def update(self, optimizer: Optimizer | None = None) -> StepOutcome:
        """Check and clip the gradients, apply or skip the step, update the scale, and clear the gradients.

        To change gradients first, call ``guard.scaler.unscale_(optimizer)`` after the last ``backward``.
        With several optimizers, ``optimizer`` selects one of them. The scale is updated after all of them
        have stepped.
        """
        if not self._batches.micro_batches:
            raise UsageError(
                "update() was called without a backward() since the last update().",
                cure="Call backward() and update(optimizer) for each optimizer in turn, or call "
                "update() once for all of them.",
            )
        if self._batches.gradients_held_back:
            raise UsageError(
                f"update() was called after {len(self._batches.micro_batches)} of "
                f"{self.config.accumulate} micro-batches, but ranks reduce gradients only after "
                "the last micro-batch.",
                cure=(
                    "Do not call update() for an incomplete step. The first batches of the next "
                    "epoch complete it."
                ),
            )
        with self._transaction:
            return self._update(self.optimizers if optimizer is None else [optimizer])

    # -- between steps

    def audit(self, loss_fn: LossFunction, batch: Any) -> AuditReport:
        """Audit the step that ``batch`` would run, and add islands for overflows. The weights do not change.

        Call this between two steps, on every rank, each with its own batch. It needs ``heal``. Use
        ``halfguard.audit`` to get only a report.
        """
        if self._healing is None:
            raise UsageError(
                "guard.audit() needs heal, which is disabled.",
                cure="Set heal: {} in the configuration, or call halfguard.audit(fn, model).",
            )
        micro = self._micro_batch(loss_fn, batch, None)
        with self._stepper.step_state.expecting(loss_fn) as lost:
            report = self._healing.audit(StepBatches(micro_batches=[micro]))
        if lost:
            self._report_unrepeatable(lost)
        return report

    def note(self, text: str) -> None:
        """Write your own note to the journal and the log. Reports show it.

        With several ranks, only rank 0 writes the note. Other ranks may call this method or not.
        """
        self._recorder.add_note(self.step_index, self.epoch, text)

    def end_epoch(self) -> Summary:
        """End an epoch: write its counts to the log and the journal, and return them."""
        self._process_due(everything=True)
        summary = self._recorder.end_epoch(self.epoch, self.scaler.get_scale())
        self.epoch += 1
        self.batch_index = 0
        return summary

    def summary(self) -> Summary:
        """Return the counts since the guard was created, without steps that are still undecided."""
        self._process_due(everything=self._stepper.single_rank)  # one rank may call this alone
        if self._stepper.single_rank:
            self._recorder.tally.set_scale(self.scaler.get_scale())
        return self._recorder.tally.summary()

    @property
    def counts(self) -> Summary:
        """Return the counts of the steps that this process has decided so far, without those of a loaded
        state.

        Unlike ``summary``, this does not wait for the device or for undecided steps. Any thread may read it
        at any time. While a step is being counted, two counts may differ by one step.
        """
        return self._recorder.process_tally.summary()

    @property
    def last_step(self) -> LastStep | None:
        """Return the measurements of the last decided step. Any thread may read them."""
        return self._recorder.last_step

    def close(self) -> Summary:
        """Complete the journal, and return the counts of the whole run."""
        if self._batches.micro_batches:
            logger.warning(
                "close: the last step is incomplete. %d of %d micro-batches were computed and are "
                "discarded; their gradients were not applied.",
                len(self._batches.micro_batches),
                self.config.accumulate,
            )
        self._process_due(everything=True)
        if self._recovery is not None:
            self._recovery.close()
        return self._recorder.close(self.scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guard and the random generators, without the model and optimizer."""
        self._process_due(everything=True)
        if self._batches.micro_batches:
            raise UsageError(
                f"A step is incomplete ({len(self._batches.micro_batches)} of {self.config.accumulate} "
                "micro-batches), and a state_dict does not contain the gradients of its micro-batches.",
                cure="Save after a call whose outcome.action is not 'accumulate'.",
            )
        return self._own_state() | {
            "scaler": self.scaler.state_dict(),
            "rng": portable_random_state(capture_random_state()),
        }

    def _own_state(self) -> dict[str, Any]:
        return {
            "precision": self._initial_config.precision,  # a remedy keeps the scale for later
            "policy": asdict(self._policy),
            "tally": self._recorder.state_dict(),
            "counters": {"epoch": self.epoch, "step": self.step_index, "batch": self.batch_index},
            "remedy": None
            if self.config == self._initial_config
            else self.config.model_dump(mode="json"),
            "held": self._scheduler_and_ema.early_steps,
            "recovery": None if self._recovery is None else self._recovery.state_dict(),
            "healing": None if self._healing is None else self._healing.state_dict(),
            "watching": None if self.watching is None else self.watching.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state from ``state_dict``, including the random generators.

        A state of torch's ``GradScaler`` is also accepted. It contains only the loss scale.
        """
        if "scaler" not in state and "growth_factor" in state:
            self.scaler.load_state_dict(dict(state))
            return
        missing = [key for key in (*self._own_state(), "scaler", "rng") if key not in state]
        if missing:
            raise UsageError(
                f"This is not the state of a guard: it does not contain {', '.join(missing)}.",
                cure="Load a dictionary that guard.state_dict() returned. The checkpoint may be from a "
                "different version.",
            )
        if self._takes_over_scale(state.get("precision")):
            self.scaler.load_state_dict(dict(state["scaler"]))
        self._stepper.half_applied = False
        self._load_own_state(state)
        restore_random_state(state["rng"])
        if self._recovery is not None:
            self._recovery.restart()

    def _takes_over_scale(self, saved: str | None) -> bool:
        """Return whether a run in this precision has a loss scale to hand over."""
        mine = Precision(self._initial_config.precision)
        return Precision(saved or mine).needs_loss_scale or not mine.needs_loss_scale

    def resume(self) -> bool:
        """Load the last good snapshot in ``run_dir``; return False if there is none.

        Call this method before the first step, on every rank. It restores the model, optimizers, scheduler,
        EMA, scaler, counters and random generators. It also restores the islands that the run had at that
        step, whatever ``plan.yaml`` contains. ``epoch``, ``batch_index`` and ``step_index`` then show where
        in the data to continue.
        """
        rules = self.config.recovery
        if self._recovery is None or rules is None or rules.store != "disk":
            raise UsageError(
                "There are no snapshots to resume from because this guard does not save "
                "snapshots to disk.",
                cure="Set recovery.store to 'disk' and pass run_dir.",
            )
        scale = self.scaler.state_dict()
        run = self._recovery.resume(self._load_islands)
        if run is not None:
            if not self._takes_over_scale(run.get("precision")):
                self.scaler.load_state_dict(scale)
            self._stepper.half_applied = False
            self._load_own_state(run)
            self._stepper.replicas.restart()
        return run is not None

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        state = self._in_this_precision(state)
        self._policy = policy.PolicyState.load(state["policy"])
        self._recorder.tally.load_state_dict(state["tally"])
        counters = state["counters"]
        self.epoch, self.step_index = counters["epoch"], counters["step"]
        self.batch_index = counters["batch"]
        if state["remedy"] is not None:  # a remedy was active when the state was taken
            self._continue_with(GuardConfig.load(state["remedy"]))
        self._scheduler_and_ema.early_steps = state["held"]
        if self._recovery is not None and state["recovery"] is not None:
            self._recovery.load_state_dict(state["recovery"])
        self._load_islands(state)
        self._warn_of_lost_islands(state)
        if self.watching is not None and state.get("watching") is not None:
            self.watching.load_state_dict(state["watching"])

    def _in_this_precision(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state whose configurations have the precision of this run, if it was taken in another."""
        saved, mine = state.get("precision"), self._initial_config.precision
        if saved in (None, mine):
            return state
        remedy, recovery = state["remedy"], state["recovery"]
        if remedy is not None and remedy["precision"] == saved:
            remedy = {**remedy, "precision": mine}
        if recovery is not None and recovery["base"]["precision"] == saved:
            recovery = {**recovery, "base": {**recovery["base"], "precision": mine}}
        return {**state, "remedy": remedy, "recovery": recovery}

    def _load_islands(self, state: Mapping[str, Any]) -> None:
        """Make the islands of a state: half weights are FP32 inside them, so this comes before weights."""
        if self._healing is not None and state.get("healing") is not None:
            self._healing.load_state_dict(state["healing"], state["counters"]["step"])

    def _warn_of_lost_islands(self, state: Mapping[str, Any]) -> None:
        if self._healing is None and (state.get("healing") or {}).get("healed"):
            logger.warning(
                "heal added FP32 islands in the saved run, but heal is now disabled, so these modules are "
                "16-bit again. To keep the islands, set plan: to the plan.yaml in its run_dir, or enable "
                "heal."
            )

    def _make_lines(self, plan: PrecisionPlan) -> LineIslands | None:
        if self.config.heal is None and not plan.lines:
            return None
        from halfguard.trials.line_islands import LineIslands

        return LineIslands(plan.lines)

    @property
    def _lines_in_fp32(self) -> AbstractContextManager[Any]:
        """The context for a micro-batch: lines that the plan or the healing names run in FP32."""
        return nullcontext() if self._lines is None else self._lines.active()

    def _make_healing(self, plan: PrecisionPlan, run_dir: Path | None) -> Healing | None:
        if self.config.heal is None or self._lines is None:
            return None
        from halfguard.guard.healing.healing import Healing

        return Healing(
            self.config.heal,
            self._stepper,
            self._recorder.journal,
            copies=self._scheduler_and_ema.averaged_models(),
            lines=self._lines,
            given=plan,
            run_dir=run_dir,
            hosted=self._hosted,
            around=self._repeating,
        )

    def _repeating(self) -> AbstractContextManager[Any]:
        """Return the context in which a step is repeated to look into it."""
        return nullcontext()

    def _make_recovery(self, run_dir: Path | None) -> Recovery | None:
        if self.config.recovery is None:
            return None
        from halfguard.guard.recovery.recovery import Recovery

        return Recovery(
            unwrap_model(self.model),
            self.optimizers,
            {"scaler": self.scaler, **self._scheduler_and_ema.savable_parts()},
            self.config,
            run_dir,
            self._own_state,
            self._stepper.private if not self._stepper.single_rank else frozenset(),
            rates=self._scheduler_and_ema.rates,
        )

    def _make_watching(self) -> Watching | None:
        if self.config.watch is None:
            return None
        from halfguard.guard.watching.watching import Watching

        schedulers = self._scheduler_and_ema.schedulers
        write = self._recorder.add_watched_step
        watching = Watching(self.config.watch, self.model, self.optimizers, schedulers, write)
        watching.preserved = self._undisturbed
        if self._healing is not None:
            heal = self._healing.alarm
            watching.on_alarm = lambda alarms, step: heal([a.finding for a in alarms], step)
        return watching

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run a step again to look into it; what it changes is put back."""
        with self._repeating(), self._stepper.step_state.preserved():
            yield

    @property
    def _observing(self) -> AbstractContextManager[Any]:
        """The context for a pass of the model: in a sampled step, its operations are measured."""
        return nullcontext() if self.watching is None else self.watching.observing()

    def _watched_update(self, row: Tensor) -> AbstractContextManager[Any]:
        if self.watching is None:
            return nullcontext()
        return self.watching.updating(self.step_index, row, self._batches, self.config)

    def reconfigure(self, config: GuardConfig) -> None:
        """Change the configuration between two steps."""
        made_once = ("recovery", "incidents", "plan", "watch", "heal")
        fixed = [name for name in made_once if getattr(config, name) != getattr(self.config, name)]
        if fixed:
            raise UsageError(
                f"reconfigure() cannot change {', '.join(fixed)}, which is fixed when the guard is created.",
                cure="Create a new guard with this configuration, and load the state_dict() of this guard "
                "into it.",
            )
        self._process_due(everything=True)
        self._continue_with(config)
        self._initial_config = config
        if self._recovery is not None:
            self._recovery.base = config
        self._pending.lag = self._lag

    @property
    def _lag(self) -> int:
        """Steps after which a row is read: none if the host waits for it anyway."""
        on_host = self._needs_answer_now or self._stepper.device.type == "cpu"
        return 0 if on_host else _LAG

    def _continue_with(self, config: GuardConfig) -> None:
        self.config = config
        self._stepper.reconfigure(config)
        self._recorder.config = config

    def __reduce_ex__(self, _protocol: SupportsIndex) -> str:
        raise UsageError(
            "A guard can be neither copied nor pickled because the copy would step the original's optimizer.",
            cure="Copy the model and the optimizer, and create a new guard for them. To save a guard, save "
            "guard.state_dict().",
        )

    # -- one step

    @property
    def _needs_answer_now(self) -> bool:
        """True if the host waits for the answer before the optimizer step.

        torch waits for every optimizer that is not fused; retry, raise and an EMA need to wait as well.
        """
        needed = self.config.skip.on_nonfinite != "skip" or self._scheduler_and_ema.ema is not None
        return needed or not self._stepper.fused or self._stepper.buffers.needs_host

    def _compares_ranks(self) -> bool:
        """Return whether ranks compare their replicas at this step."""
        desync = self.config.desync
        return desync is not None and self.step_index % desync.every == 0

    def _abandon(self, error: BaseException) -> None:
        """Leave no trace of the step: the caller may catch the error and continue with the next batch."""
        if self._begun:  # not completed yet
            self._stepper.discard()
            self._batches, self._begun = StepBatches(), False
        if self.watching is not None:
            self.watching.abandon()
        if self._stepper.half_applied:
            error.add_note(f"halfguard: {_HALF_APPLIED} {_RELOAD}")

    def _begin_step(self, *, late: bool = False) -> None:
        """Begin a step, or a further forward pass of it; ``late`` if that pass has already run."""
        if self._stepper.half_applied:
            raise UsageError(_HALF_APPLIED, cure=_RELOAD)
        if not self._begun:
            if self._healing is not None and not late:
                self._healing.apply_due(self.step_index)
            changed = self._stepper.refresh_parameters()
            if not self._hosted:
                self._stepper.raise_if_foreign_gradients()
            if self._recovery is not None:
                if changed:
                    self._recovery.on_new_parameters()
                self._recovery.begin()
            self._stepper.begin(late=late)
            self._begun = True
            if self.watching is not None and not late:
                self.watching.begin(self.step_index)
        elif not late and self._in_forward:  # the last forward pass had no backward pass
            self._stepper.begin_again(first=not self._batches.micro_batches)
        self._in_forward = not late

    def _backward(self, loss: Tensor, micro: MicroBatch, *, retain_graph: bool = False) -> None:
        self._in_forward = False
        part = loss if self.config.accumulate == 1 else loss / self.config.accumulate
        with self._observing:
            self._stepper.backward(part, micro, self._batches, retain_graph=retain_graph)

    def _update(self, optimizers: Sequence[Optimizer]) -> StepOutcome:
        limits = policy.next_limits(self._policy, self.config)
        row, gradients = self._stepper.examine(optimizers, self._batches)
        with self._watched_update(row):
            return self._conclude(optimizers, limits, row, gradients)

    def _conclude(
        self,
        optimizers: Sequence[Optimizer],
        limits: policy.StepLimits,
        row: Tensor,
        gradients: Gradients,
    ) -> StepOutcome:
        """Decide about the measured step, apply or refuse it, and process its row as soon as it is due."""
        batch_ok = partial(batches_ok, self._batches)
        outcome = StepOutcome(row, limits, gradients, batch_ok)
        turn, cause = frozenset(map(id, optimizers)), None
        where = (self.step_index, self.epoch, self.batch_index - 1)
        refused: Tensor | bool
        if self._needs_answer_now:
            values = self._stepper.gate.read(row)
            cause = policy.find_cause(read_signals(values, limits))
            refused = cause is not None
        else:
            values = None
            refused = self._stepper.gate.refused(row, limits)
        known = refused is True
        # A retry tells whether the scale caused the overflow; until then the scale waits.
        retries = self.config.skip.on_nonfinite == "retry_fp32" and self._batches.repeatable
        hold_scale = known and retries
        held = self._stepper.step_state.saved
        # Ranks that differ are compared as they are.
        undo = cause is not Cause.DESYNC
        self._stepper.apply(optimizers, gradients, refused, hold_scale=hold_scale, undo=undo)
        report = StepReport(*where, limits, turn, self._batches, outcome, held, hold_scale)
        self._batches, self._begun = StepBatches(), False
        self.step_index += 1
        self._settled = False
        try:
            self._pending.push(row if values is None else values, report)
            if self._pending.lag:
                self._advance(turn)  # a skipped step is noticed later, and corrected
            self._process_due()
        except BaseException:
            if not self._settled and hold_scale and not self._stepper.half_applied:
                self._pending.clear()  # it was refused, and not retried: as if it had never been
                self._stepper.discard()
            elif not self._settled and not known:
                self._stepper.half_applied = True  # without its scheduler and EMA
            raise
        return outcome

    def _advance(self, turn: frozenset[int]) -> None:
        self._scheduler_and_ema.advance(turn)
        self._settled = True

    # -- decisions on the host

    def _process_due(self, *, everything: bool = False) -> None:
        for values, report in self._pending.pop_due(everything=everything):
            self._process(read_signals(values, report.limits), report)

    def _process(self, seen: policy.Signals, report: StepReport) -> None:
        cause = policy.find_cause(seen)
        if cause is None:
            self._follow_applied(seen, report)
        else:
            seen = self._investigate(cause, seen, report)
        config = self._config_to_decide(report) if cause is not None else self.config
        decision, self._policy = policy.decide(self._policy, seen, config)
        if cause is not None:
            with self._back_at(report.step):
                self._look_into(decision, seen, report)
                if decision.action is Action.RETRY:
                    decision, seen = self._retry(seen, report)
                elif report.holds_scale:
                    self._stepper.release_scale(is_cause=True)
        if decision.action is Action.ROLL_BACK and not (self._recovery and self._recovery.ready):
            decision = replace(decision, action=Action.HALT)
        if not self._batches.micro_batches and not self._stepper.mid_round:
            self._change_between_steps(decision, seen, report)
        report.outcome.set_decision(decision, seen)
        if self._pending.lag and cause is not None:
            self._scheduler_and_ema.undo_early_step(report.turn)
        self._settled = True
        row = self._recorder.note(decision, seen, report, self._note(decision, report))
        if row is not None and decision.action is Action.HALT:
            self._recorder.journal.flush()
            explanation = explain(decision, seen, report.outcome.fault_report, self.config)
            batches = report.batches.descriptions(contents=False, about=not self.config.privacy)
            raise halt_error(row, explanation, batches, streak=self._policy.streak)
        if self._recovery is not None:
            self._recover(decision)

    @contextmanager
    def _back_at(self, step: int) -> Iterator[None]:
        """Run the block with the number of a step that is run again: its loss function may read it."""
        now, self.step_index = self.step_index, step
        try:
            yield
        finally:
            self.step_index = now

    def _look_into(
        self, decision: policy.Decision, seen: policy.Signals, report: StepReport
    ) -> None:
        """Keep a bad step as an incident, and find out whether the model must be healed."""
        exact = not self._pending.lag
        model = unwrap_model(self.model)
        self._recorder.capture(model, self.config, decision, seen, report, exact=exact)
        is_between = not self._batches.micro_batches and not self._begun
        if self._healing is not None and is_between:
            self._healing.notice(decision, seen, report)

    def _change_between_steps(
        self, decision: policy.Decision, seen: policy.Signals, report: StepReport
    ) -> None:
        """Change what must stay the same during a step: the loss scale, and FP32 islands."""
        if decision.scale is not None:
            self.scaler.update(decision.scale)
        if self._healing is not None and not self._begun:
            if seen.alarm:
                self._healing.follow_alarms(report.batches, report.step)
            self._healing.apply_due(self.step_index)

    def _config_to_decide(self, _report: StepReport) -> GuardConfig:
        """Return the configuration by which a bad step is decided."""
        return self.config

    def _follow_applied(self, seen: policy.Signals, report: StepReport) -> None:
        if not self._pending.lag:
            self._advance(report.turn)
        if not seen.statistics_finite:
            self._repair_statistics(report)

    def _repair_statistics(self, report: StepReport) -> None:
        if not self._pending.lag:  # otherwise the device has done it
            self._stepper.buffers.restore_nonfinite()
        if self._first_time("statistics"):
            logger.warning(
                "step %d: running statistics became non-finite although the loss is finite, for "
                "example because of a NaN sample that the loss ignores. Their previous values are "
                "restored. This is reported only once.",
                report.step,
            )

    def _investigate(
        self, cause: Cause, seen: policy.Signals, report: StepReport
    ) -> policy.Signals:
        poisoned_only = bool(self._pending.lag)  # the steps since then may be good
        if cause is not Cause.DESYNC:
            self._put_back(report, poisoned_only=poisoned_only)
        gradients, replicas = report.outcome.gradients, self._stepper.replicas
        model = unwrap_model(self.model)
        # A step that the device decided may have left its own NaN there.
        state = () if poisoned_only else report.state
        found = investigate(cause, report.batches, gradients, replicas, model, state)
        report.outcome.fault_report = found
        return replace(
            seen, weights_ok=found.bad_weight is None, batch_ok=found.batch_fault is None
        )

    def _put_back(self, report: StepReport, *, poisoned_only: bool) -> None:
        """Put back what a refused step changed, and its batches."""
        for given in (micro.given for micro in report.batches.micro_batches):
            if given is not None and not poisoned_only:
                given.restore()
        self._stepper.restore_state(report.state, poisoned_only=poisoned_only)

    def _retry(self, seen: policy.Signals, report: StepReport) -> Decided:
        found = report.outcome.fault_report
        if found is not None and found.changed_in_place:  # on any rank: all of them decide alike
            return self._skip_unrepeatable(seen, report)
        skipped = self._skip_if_different(seen, report)
        if skipped is not None:
            return skipped
        applied = False
        try:
            repeated, errors = self._stepper.repeat(report.batches, self._saved_on_host)
            if repeated is None:
                skipped = self._skip_failed(errors, seen, report)
                self._stepper.discard()
                return skipped
            row, gradients = repeated
            again = read_signals(row.tolist(), report.limits)
            again = replace(again, weights_ok=seen.weights_ok, batch_ok=seen.batch_ok)
            in_fp32 = policy.find_cause(again)
            decision, self._policy = policy.decide_retried(self._policy, again, seen, self.config)
            if decision.action is Action.RETRY:
                self._stepper.apply_repeated(gradients)
                applied = True
            is_transient = applied and report.batches.finite_again
            is_cause = in_fp32 not in policy.NONFINITE and not is_transient
            is_cause = is_cause and not policy.is_nan_unscaled(seen)
            self._stepper.release_scale(is_cause=is_cause)
            if applied:
                self._advance(report.turn)
            if is_transient:
                decision = replace(decision, note=self._describe_transient(report))
        except BaseException:
            self._stepper.half_applied |= applied
            self._stepper.discard()
            raise
        if not applied:
            self._stepper.discard()
        return decision, replace(again, scale=seen.scale)

    def _saved_on_host(self) -> AbstractContextManager[object]:
        """Return a context in which autograd saves tensors in host memory."""
        from halfguard.guard.stepping.saved_on_host import SavedOnHost

        return SavedOnHost(self.model)

    def _skip_if_different(self, seen: policy.Signals, report: StepReport) -> Decided | None:
        """Run the step twice as it was; skip it if the two passes differ on any rank.

        That is done at the first repeat, and at the second, fourth, eighth: state may appear late. It is
        also done once for each new culprit: if the passes are finite, the machine was at fault.
        """
        self._repeats += 1
        known, device = report.outcome.fault_report, self._stepper.device
        culprits = ("",) if known is None else known.culprits[:1]
        is_new = not self._culprits.issuperset(culprits)
        self._culprits.update(culprits)
        if self._repeats & (self._repeats - 1) and not is_new:
            return None
        from halfguard.guard.stepping.two_passes import run_as_it_was

        difference, is_finite = run_as_it_was(
            self._stepper, report.batches, self._loss_again, whole=not self._hosted
        )
        # A host may add a context to its pass that is not in its repeat.
        is_finite = is_finite and not self._hosted and not self._stepper.adds_in_half
        report.batches.finite_again = all_agree(is_finite, device)
        if all_agree(not difference, device):
            return None
        names = [difference or "something on another rank"]
        report.batches.unrepeatable = True
        self._report_unrepeatable(self._stepper.step_state.add_unrepeatable(names))
        return self._skip_unrepeatable(seen, report)

    def _describe_transient(self, report: StepReport) -> str:
        """Say which machines computed numbers that the same step does not give again. All ranks are here."""
        where = self._places(report.outcome.ranks)
        return (
            "transient fault: the step was finite in two unchanged repeats, with the same batch, random "
            f"numbers and loss scale ({where}). The loss scale stays the same and no island is added. If "
            "this happens again, test the hardware of that machine."
        )

    def _places(self, ranks: Sequence[int]) -> str:
        """Name ranks with host and device; all of them if none is given. All ranks are here."""
        places = all_gather_object(f"{platform.node()}, {self._stepper.device}")
        named = (ranks or range(len(places)))[:_PLACES]
        if self.config.privacy:
            return ", ".join(f"rank {rank}" for rank in named)
        return "; ".join(f"rank {rank} on {places[rank]}" for rank in named)

    def _loss_again(self, micro: MicroBatch, batch: Any) -> Tensor:
        with self._lines_in_fp32, autocast(self.config.precision, self._stepper.device.type):
            return self._loss(micro, batch)

    def _skip_unrepeatable(self, seen: policy.Signals, report: StepReport) -> Decided:
        """Skip a step whose batch the loss function changed in place; copy batches from now on."""
        if self.config.skip.strict and not self._stepper.single_rank:  # all ranks are here
            raise UsageError(
                f"step {report.step} cannot be repeated because this rank or another rank changes "
                "state that cannot be restored. The log of that rank names the state."
            )
        if report.batches.unrepeatable:  # reported when it was seen
            return self._skip_unrepeated(seen)
        if not self._copies_batches:
            logger.warning(
                "step %d cannot be repeated in FP32 because loss_fn changed its batch in place. "
                "From now on, batches are copied. To avoid the copies, do not change the batch in "
                "loss_fn.",
                report.step,
            )
        self._copies_batches = True
        return self._skip_unrepeated(seen)

    def _report_unrepeatable(self, names: list[str]) -> None:
        """Say by name what a step changes and nobody can put back."""
        if self.config.skip.on_nonfinite != "retry_fp32" and self.config.heal is None:
            return
        what = ", ".join(names[:5])
        cure = (
            "Read the values outside loss_fn and pass them in the batch, or keep a position that "
            "can be restored, such as an index."
        )
        if self.config.skip.strict and self._stepper.single_rank:
            raise UsageError(
                f"A step cannot be repeated because it changes {what}, which cannot be restored.",
                cure=cure,
            )
        logger.warning(
            "step %d changes %s, which cannot be restored. Failed steps are skipped instead of "
            "being repeated in FP32. This is reported only once. %s",
            self.step_index,
            what,
            cure,
        )

    def _skip_failed(
        self, errors: Sequence[str], seen: policy.Signals, report: StepReport
    ) -> Decided:
        """Skip a step whose repeat raised, on any rank; say so once."""
        if self._first_time("failed repeat"):
            error = errors[0].removeprefix("rank 0: ") if self._stepper.single_rank else errors[0]
            logger.warning(
                "step %d could not be repeated in FP32 and is skipped: %s\nFrom now on, such "
                "steps are skipped, as without retry_fp32. This is reported only once. Code that "
                "accepts only 16-bit tensors (fused attention, a cast to half, an assertion) can "
                "call .float() or use another implementation when torch.is_autocast_enabled() is "
                "False. If the repeat ran out of memory, use a smaller batch.",
                report.step,
                error.partition("\n")[0],
            )
        return self._skip_unrepeated(seen)

    def _first_time(self, what: str) -> bool:
        """Return whether something is to be reported, which is done once."""
        told = what in self._told
        self._told.add(what)
        return not told

    def _skip_unrepeated(self, seen: policy.Signals) -> Decided:
        skipping = policy.without_repeat(self.config)
        decision, self._policy = policy.decide(self._policy, seen, skipping)
        self._stepper.release_scale(is_cause=True)
        return decision, seen

    def _discard_pending(self, decision: policy.Decision) -> None:
        """Record the steps that were taken before the host saw the fault: the rollback undid them."""
        undone = policy.Decision(Action.ROLL_BACK, decision.cause)
        for values, report in self._pending.pop_due(everything=True):
            seen = read_signals(values, report.limits)
            report.outcome.set_decision(undone, seen)
            self._recorder.note(undone, seen, report, "undone by the rollback")

    def _note(self, decision: policy.Decision, report: StepReport) -> str:
        if report.outcome.divergence is not None:
            return str(report.outcome.divergence)
        if decision.remedy is not None:
            return f"remedy: {decision.remedy}"
        if decision.note:
            return decision.note
        if decision.action is not Action.HALT or self.config.recovery is None:
            return ""
        if self._recovery is None or not self._recovery.ready:
            return "There was no snapshot to roll back to because none had been confirmed as good."
        ladder = policy.allowed_remedies(self._initial_config)
        return describe_recovery(self._policy.rollbacks, ladder[: self._policy.remedies])

    def _recover(self, decision: policy.Decision) -> None:
        assert self._recovery is not None  # noqa: S101 - checked by the caller
        if decision.action is Action.ROLL_BACK:
            self._continue_with(self._recovery.roll_back(decision.remedy))
            self._scheduler_and_ema.early_steps = 0  # the scheduler was rolled back as well
            self._stepper.replicas.restart()
            self._discard_pending(decision)
        elif decision.action in {Action.APPLY, Action.RETRY}:
            self._recovery.applied()
        else:
            self._recovery.bad()


def _needs_forward_pass(setting: str) -> UsageError:
    return UsageError(
        f"{setting} must repeat the forward pass of a step, but backward(loss) receives only the "
        "loss.",
        cure=f"Call guard.step(loss_fn, batch), or disable {setting.partition('=')[0]}.",
    )


def _as_list(optimizer: Any) -> list[Optimizer]:
    """Return one optimizer or several as a list; a wrapper need not be a ``torch.optim.Optimizer``."""
    return [optimizer] if hasattr(optimizer, "param_groups") else list(optimizer)
