"""Detectors of what trains wrongly without a bad number: each listens to the bus, and belongs to one failure.

What the script does to gradients itself is not known, and not blamed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.formats import dtype_name
from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import BackwardCall, HookBus
from halfguard.investigation.passes import Made, Misused, MisuseKind
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import Place, user_place
from halfguard.step.parameters import parameters_of

OFTEN = 3  # times that it must happen


class Detector:
    """Listens for one failure, whose code it has; ``found`` tells what was seen at the end of a run."""

    code = ""

    def __init__(self, bus: HookBus) -> None:
        self.bus = bus

    def found(self, made: Made, error: str) -> Iterator[Misused]:
        """Yield the failure with its line; ``error`` is the one that ended the script."""
        raise NotImplementedError


class ScheduleAhead(Detector):
    """A schedule that moves on while the scaler skips steps."""

    code = "HG304"
    _FEWEST, _MOST = 5, 0.1  # moves, and their share of steps
    # Of a scaler by default; from there on it finds its level, which is not wrong.
    _DEFAULT_SCALE = 2.0**16

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._place: Place | None = None
        self._ahead = 0
        self._begun: MutableMapping[Any, bool] = WeakIdKeyDictionary()  # by a step of a scaler

    def on_scaler_done(self, _scaler: Any, optimizer: Any) -> None:
        if not self.bus.was_skipped(optimizer):
            self._begun[getattr(optimizer, "optimizer", optimizer)] = True

    def on_scheduled(self, schedule: Any) -> None:
        optimizer = getattr(schedule.optimizer, "optimizer", schedule.optimizer)
        counts = optimizer in self._begun or self.bus.scale >= self._DEFAULT_SCALE
        if counts and self.bus.was_skipped(schedule.optimizer):
            self._ahead += 1
            self._place = self._place or user_place()

    def found(self, made: Made, _error: str) -> Iterator[Misused]:
        steps = self.bus.scaler_steps
        many = self._ahead >= self._FEWEST and self._ahead > self._MOST * steps
        if self._place is not None and many:
            made_at = describe_place(made.optimizer if made.fused else made.scaler)
            fused = "The optimizer is fused and does not report skipped steps"
            subject = fused if made.fused else "The scaler was made at"
            text = (
                f"The learning rate schedule advanced {self._ahead} times in {steps} steps "
                f"although the scaler had skipped the step: {describe_place(self._place)}. Call "
                "scheduler.step() only if the optimizer has stepped (scaler.get_scale() has not "
                "decreased), or start with a lower scale."
                + (f" {subject}: {made_at}." if made_at else "")
            )
            yield Misused(kind="schedule", code=self.code, sentence=text, place=self._place)


class NewScalers(Detector):
    """Scalers that take the place of another one, and skip their first step."""

    code = "HG210"

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._made: MutableMapping[Any, Place | None] = (
            WeakIdKeyDictionary()
        )  # and have not stepped
        self._had: MutableMapping[Any, bool] = WeakIdKeyDictionary()  # optimizers that had a scaler
        self._skips: list[Place] = []

    def on_scaler_made(self, scaler: Any, _device: str) -> None:
        self._made[scaler] = user_place()

    def on_scaler_done(self, scaler: Any, optimizer: Any) -> None:
        place, stepped = self._made.pop(scaler, None), getattr(optimizer, "optimizer", optimizer)
        if place is not None and stepped in self._had and self.bus.was_skipped(optimizer):
            self._skips.append(place)
        self._had[stepped] = True

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if len(self._skips) >= OFTEN:
            place = self._skips[0]
            text = (
                f"A new scaler was created {len(self._skips)} times for the same optimizer and "
                "skipped its first step each time, because the calibrated scale of the previous "
                "scaler is lost. Create the scaler once, before the loop: "
                f"{describe_place(place)}."
            )
            found = Misused(kind="new scaler", code=self.code, sentence=text, place=place)
            yield found.model_copy(update={"unsure": True})


class ScaledPenalty(Detector):
    """Gradients of a scaled loss that become a part of another loss."""

    code = "HG213"
    _place: Place | None = None
    _is_scaled = False  # since the last backward pass
    _count = 0  # without a look at the scale
    _reads = 0  # of the scale, until the last backward pass

    def on_backward(self, call: BackwardCall) -> None:
        if not call.accumulates:
            if call.scaler is not None and call.creates_graph:
                self._place, self._is_scaled = self._place or user_place(), True
        else:
            reads, self._reads = self._reads, self.bus.scaled_losses.reads
            self._count += self._is_scaled and self._reads == reads
            self._is_scaled = False

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if self._place is not None and self._count >= OFTEN:
            text = (
                "Gradients of a scaled loss are part of another loss, where they are still "
                f"multiplied by the loss scale: {describe_place(self._place)}. Divide them by "
                "scaler.get_scale()."
            )
            yield Misused(kind="penalty", code=self.code, sentence=text, place=self._place)


class ScalerOff(Detector):
    """A scaler for a device that is not here, beside autocast in FP16 on one that is."""

    code = "HD113"
    _seen: tuple[Place, str] | None = None  # line and device

    def on_scaler_made(self, scaler: Any, device: str) -> None:
        place = user_place()
        if device and not scaler.is_enabled() and place is not None:
            self._seen = place, device

    def found(self, made: Made, _error: str) -> Iterator[Misused]:
        if self._seen is not None and made.autocast_device and not self.bus.scaler:
            place, device = self._seen
            text = (
                f"The scaler is for {device}, which this machine does not have, so it is "
                f"disabled. Autocast runs in float16 on {made.autocast_device}, and small "
                f"gradients become 0. Create the scaler for that device: {describe_place(place)}."
            )
            yield Misused(kind="scaler off", code=self.code, sentence=text, place=place)


@dataclass
class _Source:
    """A backward pass that gave gradients to an optimizer."""

    scaler: weakref.ref[Any] | None  # that has scaled its loss, if it is known
    is_plain: bool  # its loss was not scaled
    place: Place | None


@dataclass
class _Followed:
    """What is known of the gradients of one optimizer."""

    sources: list[_Source] = field(default_factory=list)
    marks: list[tuple[int, int] | None] | None = None  # gradients and versions, as seen last
    fresh: bool = False  # it has not stepped since
    left: Place | None = None  # a line that added gradients to those of a step before
    unscaled: bool = False  # by the scaler
    used: bool = False  # the scaler has stepped on these gradients, or rejected them
    has_scaler: bool = False  # a scaler has stepped it before

    def forget(self) -> None:
        """Forget where the gradients come from: the script has changed them, or zeroed them."""
        self.sources, self.left, self.unscaled, self.used = [], None, False, False

    @property
    def is_scaled(self) -> bool:
        """Return whether all gradients are multiplied by a loss scale now, as far as torch knows."""
        return (
            bool(self.sources) and not self.unscaled and not any(s.is_plain for s in self.sources)
        )


class WrongGradients(Detector):
    """Follows which backward pass gave gradients to which optimizer, and by what its loss was scaled.

    A scaler divides the gradients of its optimizer by its scale. It is wrong if a loss was not scaled, or by
    another scaler, or if gradients of steps before are still there; and what clips or steps before has
    gradients that are far too large.
    """

    _SAMPLE = 16  # parameters of an optimizer whose gradients are looked at
    _SMALL = 0.01  # of the loss scale: a limit below it was not multiplied by the scale
    _CODES: ClassVar = {
        "not scaled": "HG206",
        "other scaler": "HG206",
        "not zeroed": "HG215",
        "clipped": "HG201",
        "raw step": "HG205",
        "second step": "HG205",
    }
    _ONCE: ClassVar = ("clipped", "raw step", "second step")  # is often enough
    _TEXTS: ClassVar[dict[MisuseKind, str]] = {
        "not scaled": (
            "The scaler divides these gradients by its scale although the loss was not multiplied "
            "by it, so they almost vanish: {place}. Write scaler.scale(loss).backward(). The "
            "optimizer uses the gradients at {by}."
        ),
        "other scaler": (
            "The loss was scaled by one scaler, but its gradients are unscaled by another: "
            "{place}, {by}. Scale each loss with the scaler that steps its optimizer."
        ),
        "not zeroed": (
            "Gradients of earlier steps are not cleared and accumulate at {place}. Call "
            "optimizer.zero_grad() in every step."
        ),
        "clipped": (
            "Gradients were clipped to {limit:g} while they were still multiplied by the loss "
            "scale of {scale:g}, so they almost vanished: {place}. Call "
            "scaler.unscale_(optimizer) before clipping, or let the framework clip."
        ),
        "raw step": (
            "An optimizer was stepped on gradients that were still multiplied by the loss scale, "
            "at {place}. Step it only with scaler.step(optimizer)."
        ),
        "second step": (
            "An optimizer that the scaler steps was also stepped directly, on gradients that were "
            "still scaled, had been rejected or had already been used, at {place}. Step it only "
            "with scaler.step(optimizer)."
        ),
    }

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._followed: MutableMapping[Any, _Followed] = WeakIdKeyDictionary()
        self._wrong: dict[MisuseKind, list[dict[str, Any]]] = {}
        self._intact: list[torch.optim.Optimizer] = []

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        for kind, seen in self._wrong.items():
            first, is_once = seen[0], kind in self._ONCE
            if is_once or len(seen) >= OFTEN:
                place, by = first["place"], first["by"]
                shown = {"place": describe_place(place), "by": describe_place(by)}
                yield Misused(
                    kind=kind,
                    code=self._CODES[kind],
                    sentence=self._TEXTS[kind].format(**(first | shown)),
                    place=place,
                    by=by,
                    unsure=kind in ("raw step", "second step"),  # Adam divides by any factor
                )

    def on_backward(self, call: BackwardCall) -> None:
        for optimizer, one, before in self._marked(call):
            if before != one.marks or not self._are_left(self._sampled(optimizer)):
                one.forget()
            elif not one.fresh and one.sources:
                one.left = user_place() or one.left

    def on_backward_done(self, call: BackwardCall, _gradients: Any) -> None:
        for _, one, before in self._marked(call):
            if before == one.marks:
                continue
            if not one.fresh:  # a step has used those before
                one.sources = []
            one.fresh, one.unscaled, one.used = True, False, False
            scaler = None if call.scaler is None else weakref.ref(call.scaler)
            if len(one.sources) < self._SAMPLE:
                one.sources.append(_Source(scaler, not call.scaled, user_place()))

    def on_unscaling(self, scaler: Any, optimizer: Any) -> None:
        """Compare the scaler with those of the gradients that it is about to divide; later ones are not."""
        one = self._followed.get(getattr(optimizer, "optimizer", optimizer), _Followed())
        one.unscaled = True
        losses = self.bus.scaled_losses
        if not scaler.is_enabled() or (losses.may_scale_by_hand and not losses.has_scaled(scaler)):
            return
        state = scaler._per_optimizer_states.get(id(optimizer), {})
        is_ready = state.get("stage", OptState.READY) is OptState.READY
        if not is_ready or self.bus.scale_of(scaler) == 1:
            return
        for source in one.sources:
            by = None if source.scaler is None else source.scaler()
            if source.is_plain:
                self._note("not scaled", source.place)
            elif by is not None and by is not scaler:
                self._note("other scaler", source.place)

    def on_clipping(self, parameters: list[Tensor]) -> None:
        """Note the optimizers whose gradients nothing has changed since their backward pass."""
        ids = set(map(id, parameters))
        owners = {o: set(map(id, parameters_of(o))) for o in self._followed}
        owners = {o: own for o, own in owners.items() if own & ids}
        unscaled = [own for o, own in owners.items() if self._followed[o].unscaled]
        self._intact = [
            o
            for o, own in owners.items()
            if self._followed[o].marks == self._marks_of(o) and not own & set().union(*unscaled)
        ]

    def on_clipped(self, norm: Any, limit: Any) -> None:
        scale, limit = self.bus.scale, float(limit)
        cut = (norm is None or not float(norm) <= limit) and limit < self._SMALL * scale
        by_hand = self.bus.scaled_losses.was_read  # the script may have divided them itself
        for optimizer in self._intact:
            one = self._followed[optimizer]
            one.marks = self._marks_of(optimizer)
            if cut and one.is_scaled and not by_hand:
                self._note("clipped", user_place(), limit=limit, scale=scale)
        self._intact = []

    def on_scaler_stepped(self, scaler: Any, optimizer: Any) -> None:
        self._use(optimizer, by_scaler=scaler.is_enabled())

    def on_stepped(self, optimizer: Any) -> None:
        one = self._followed.get(optimizer)
        if one is not None and not self.bus.in_scaler and one.marks == self._marks_of(optimizer):
            is_known = all(s.scaler is not None for s in one.sources)
            if one.used or (one.is_scaled and is_known):
                self._note("second step" if one.has_scaler else "raw step", user_place())
        self._use(optimizer)

    def _use(self, optimizer: Any, *, by_scaler: bool = False) -> None:
        stepped = getattr(optimizer, "optimizer", optimizer)
        one = self._followed.get(stepped)
        if one is not None:
            one.fresh, one.marks = False, self._marks_of(stepped)
            one.used |= by_scaler
            one.has_scaler |= by_scaler
            if one.left is not None:
                self._note("not zeroed", one.left)
                one.left = None

    def on_zeroed(self, zeroed: Any) -> None:
        """Forget the gradients of an optimizer; of all, if a model is zeroed."""
        for optimizer, followed in self._followed.items():
            if optimizer is zeroed or not isinstance(zeroed, torch.optim.Optimizer):
                followed.forget()

    def _marked(self, call: BackwardCall) -> Iterator[tuple[Any, _Followed, Any]]:
        """Yield all optimizers with what is known of them; the marks of before come apart."""
        for optimizer in self.bus.optimizers if call.accumulates else ():
            one = self._followed.setdefault(optimizer, _Followed())
            before, one.marks = one.marks, self._marks_of(optimizer)
            yield optimizer, one, before

    def _are_left(self, grads: list[Tensor | None]) -> bool:
        with self.bus.unobserved():
            return any(grad is not None and bool(grad.any()) for grad in grads)

    def _note(self, kind: MisuseKind, place: Place | None, **facts: float) -> None:
        if place is not None:
            seen = {"place": place, "by": user_place()} | facts
            self._wrong.setdefault(kind, []).append(seen)

    def _sampled(self, optimizer: torch.optim.Optimizer) -> list[Tensor | None]:
        """Return gradients of some parameters, spread over an optimizer."""
        parameters = list(parameters_of(optimizer))
        stride = max(1, len(parameters) // self._SAMPLE)
        return [p.grad for p in parameters[::stride]]

    def _marks_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[int, int] | None]:
        return [None if g is None else (id(g), g._version) for g in self._sampled(optimizer)]


class RoundedIntegers(Detector):
    """Whole numbers that half rounds: positions in a row that become half, or ids that were kept in half."""

    code = "HG117"
    _FEWEST = 16  # fewer numbers in a row are no positions
    _seen: Misused | None = None

    def on_operation(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        given = args[0] if args else None
        if self._seen is not None or func.overloadpacket.__name__ != "_to_copy":
            return
        if not isinstance(given, Tensor) or not isinstance(out, Tensor):
            return
        if out.dtype in HALF_DTYPES and _is_whole(given) and self._collide(given, out):
            text = (
                "Positions are cast to {dtype} at {place}. Integers above {limit:g} are rounded, so "
                "neighboring positions become equal. Compute the positions in FP32."
            )
            self._note(text, out.dtype, unsure=False)
        elif given.dtype in HALF_DTYPES and _is_whole(out) and _are_ids(given):
            text = (
                "Integers are read from {dtype} values at {place}. {dtype} rounds integers above "
                "{limit:g}, so different ids become equal. Keep them as integers, or in FP32."
            )
            self._note(text, given.dtype, unsure=True)

    def _collide(self, numbers: Tensor, out: Tensor) -> bool:
        if numbers.dim() != 1 or numbers.numel() < self._FEWEST:
            return False
        in_a_row = bool((numbers[1:] - numbers[:-1] == 1).all())
        return in_a_row and bool((out[1:] == out[:-1]).any())

    def _note(self, text: str, dtype: torch.dtype, *, unsure: bool) -> None:
        place = user_place()
        if place is None:
            return
        shown = {"dtype": dtype_name(dtype), "limit": _most_exact(dtype)}
        text = text.format(place=describe_place(place), **shown)
        seen = Misused(kind="rounded integers", code=self.code, sentence=text, place=place)
        self._seen = seen.model_copy(update={"unsure": unsure})

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if self._seen is not None:
            yield self._seen


def _is_whole(tensor: Tensor) -> bool:
    floats = tensor.is_floating_point() or tensor.is_complex()
    return not floats and tensor.dtype != torch.bool


def _most_exact(dtype: torch.dtype) -> float:
    """Return the number up to which a dtype has every integer."""
    return 2 / torch.finfo(dtype).eps


def _are_ids(numbers: Tensor) -> bool:
    """Return whether half numbers are all whole, and some beyond the last one that is exact."""
    beyond = (numbers > _most_exact(numbers.dtype)) & numbers.isfinite()
    return bool(beyond.any()) and bool((numbers == numbers.trunc()).all())


class SmallGradients(Detector):
    """A backward pass without a scaler, whose gradients are too small for half."""

    code = "HG207"
    _FEW_BITS = 2.0**-17  # gradients below have at most 7 significant bits in float16

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._seen: list[Misused] = []
        self._small: list[bool] = []
        self._has_fp16 = False  # a region of autocast

    def on_autocast_entered(self, region: Any) -> None:
        """Note whether a region of FP16 is entered; it stays noted."""
        self._has_fp16 |= region._enabled and region.fast_dtype is torch.float16

    def look(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        """Look at the gradients of a backward pass that an audit has chosen."""
        if call.scaled or self.bus.scaler is not None or not gradients or not self._has_fp16:
            return
        with self.bus.unobserved():
            values = [
                g.coalesce().values() if g.is_sparse else g for g in map(Tensor.detach, gradients)
            ]
            largest = [float(g.abs().max()) for g in values if g.numel()]
            dense = [g.detach() for g in gradients if not g.is_sparse]
            norms = tuple(float(g.double().norm()) for g in dense)
        few = sum(one < self._FEW_BITS for one in largest)
        self._small.append(few > len(largest) / 2)
        place = user_place()
        text = (
            "Autocast runs in float16 without a loss scale, and most gradients are too small for "
            f"float16: they become 0 or subnormal at {describe_place(place)}. Scale the loss with "
            "a GradScaler."
        )
        sizes = tuple(g.numel() for g in dense)
        seen = Misused(
            kind="no scaler", code=self.code, sentence=text, place=place, norms=norms, sizes=sizes
        )
        unsure = {"backward": self.bus.backward, "unsure": True}
        self._seen.append(seen.model_copy(update=unsure))

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        """Yield what was seen; only FP32 can tell if it is wrong."""
        # Later they may be small because the model has learnt.
        early = self._small[1 : len(self._small) // 2 + 1]
        if len(self._seen) >= OFTEN and all(early):
            yield self._seen[len(self._seen) // 2]
