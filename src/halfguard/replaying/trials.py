"""What would have prevented it? Each change is made alone, and the step is really run with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import isfinite

from halfguard.precision.modes import Precision
from halfguard.records.autopsy import Trial
from halfguard.records.culprit import Culprit
from halfguard.replaying.producer import first_bad_number
from halfguard.replaying.replayed_step import ReplayedStep, Variation
from halfguard.replaying.samples import batch_size, to_blame
from halfguard.replaying.substitute import Place, Stable, Substitute

_DOUBLINGS = 24  # how far down loss scales are looked for
_CHANGES = 4  # lines or modules that are changed together


@dataclass(frozen=True)
class Apple:
    """The samples that bring the fault about: which micro-batch, which rows, and the step without."""

    micro_batch: int
    samples: tuple[int, ...]
    without: Trial


class Trials:
    """Runs variations of a step and writes down how each went."""

    def __init__(self, step: ReplayedStep, watch: Callable[[str], None] = lambda _: None) -> None:
        self.step = step
        self.done: list[Trial] = []
        self._watch = watch

    def attempt(self, name: str, variation: Variation, note: str = "") -> Trial:
        """Run one variation and write it down."""
        trial = self.run(name, variation, note)
        self.done.append(trial)
        return trial

    def run(self, name: str, variation: Variation, note: str = "") -> Trial:
        """Run one variation; an error in it is a step that was not good, with its message."""
        trial = self._run(name, variation, note)
        floor = self.step.scale_floor
        if trial.good or not isfinite(trial.loss) or variation.scale or floor >= self.step.scale:
            return trial
        # The loss is cured and the gradients are not: that is where a dynamic loss scale falls by itself.
        lower = replace(variation, scale=floor)
        again = self._run(name, lower, f"at loss scale {floor:g}, where a dynamic scale would go")
        return again if again.good else trial

    def _run(self, name: str, variation: Variation, note: str) -> Trial:
        self._watch(name)
        try:
            result = self.step.run(variation)
        except Exception as error:  # noqa: BLE001 - the user's code, under a condition it never met
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return Trial(name=name, good=False, note=said)
        if result.grad_norm == 0 and not note:
            note = "all gradients are 0: finite, but nothing is learnt"
        return Trial(
            name=name,
            good=result.within(self.step.limits),
            loss=result.loss.item(),
            grad_norm=result.grad_norm,
            note=note,
        )

    # -- the counterfactuals

    def stable_operations(self, culprit: Culprit) -> tuple[Trial, dict[Place, set[Stable]]] | None:
        """Stable forms on the culprit's line, then also where the next bad number is made.

        None if there is no form for what stands on the first line.
        """
        culprits, best = [culprit], None
        while len(culprits) <= _CHANGES:
            places = [(c.file, c.line) for c in culprits]
            substitute = Substitute(places)
            name = f"stable operations for {', '.join(c.op for c in culprits)}"
            trial = self.run(name, Variation(within=substitute))
            if len(substitute.used) < len(set(places)):  # the last has no form: it changed nothing
                break
            best = trial, substitute.used
            found = None if trial.good else self._next(Variation(within=Substitute(places)))
            if found is None or not found.file or (found.file, found.line) in places:
                break
            culprits.append(found)
        if best is not None:
            self.done.append(best[0])
        return best

    def islands(self, culprit: Culprit) -> tuple[Trial, tuple[str, ...]] | None:
        """The culprit's module in FP32, with those that break next; else what surrounds it."""
        paths: tuple[str, ...] = ()
        following: Culprit | None = culprit
        while following is not None and following.module and len(paths) < _CHANGES:
            if following.module in paths:
                break
            paths = (*paths, following.module)
            trial = self._in_fp32(paths)
            if trial.good:
                return trial, paths
            following = self._next(Variation(islands=paths))
        for path in _outward(culprit.module or ""):
            trial = self._in_fp32((path,))
            if trial.good:
                return trial, (path,)
        return None

    def _in_fp32(self, paths: tuple[str, ...]) -> Trial:
        return self.attempt(f"{' and '.join(map(repr, paths))} in FP32", Variation(islands=paths))

    def _next(self, variation: Variation) -> Culprit | None:
        """What breaks although something was changed, at the loss scale where a dynamic one would be."""
        try:
            return first_bad_number(self.step, replace(variation, scale=self.step.scale_floor))
        except Exception:  # noqa: BLE001 - the user's code, under a condition it never met
            return None

    def lower_scale(self) -> tuple[Trial, float] | None:
        """The largest loss scale below the step's own at which it is good."""
        lowest = _DOUBLINGS
        if not self._at(lowest).good:
            return None
        failed = 0  # doublings below the step's scale: one that is not good, and one that is
        while lowest - failed > 1:
            middle = (lowest + failed) // 2
            failed, lowest = (failed, middle) if self._at(middle).good else (middle, lowest)
        trial = self._at(lowest)
        self.done.append(trial)
        return trial, self.step.scale / 2.0**lowest

    def _at(self, doublings: int) -> Trial:
        scale = self.step.scale / 2.0**doublings
        return self.run(f"loss scale {scale:g}", Variation(scale=scale))

    def precision(self, precision: Precision) -> Trial | None:
        """The whole step in another precision; None if it is the one that it was run in."""
        if precision is self.step.precision:
            return None
        return self.attempt(f"the whole step in {precision}", Variation(precision=precision))

    def mended(self, name: str) -> Trial:
        """The step with the bad numbers of one parameter or buffer set to 0."""
        return self.attempt(f"{name} with its bad numbers set to 0", Variation(mended=(name,)))

    # -- the bad apple

    def apple(self) -> Apple | None:
        """The samples without which the step is good; None if single ones are not to blame."""
        for index, batch in enumerate(self.step.batches):
            size = batch_size(batch)
            alone = Variation(micro_batches=(index,))
            if size is None or size < 2 or self.run("one micro-batch", alone).good:
                continue

            def is_good(samples: tuple[int, ...], alone: Variation = alone) -> bool:
                name = f"{len(samples)} samples"
                return bool(samples) and self.run(name, replace(alone, samples=samples)).good

            samples = to_blame(size, is_good)
            if not samples:
                return None
            rest = tuple(i for i in range(size) if i not in samples)
            without = self.attempt(
                f"the batch without {named(samples)}", replace(alone, samples=rest)
            )
            return Apple(index, samples, without)
        return None


def _outward(path: str) -> Iterator[str]:
    """The modules around a module, innermost first; the whole model is no island."""
    while path := path.rpartition(".")[0]:
        yield path


def named(samples: tuple[int, ...]) -> str:
    """``sample 3``, ``samples 3 and 7``."""
    if len(samples) == 1:
        return f"sample {samples[0]}"
    return f"samples {', '.join(map(str, samples[:-1]))} and {samples[-1]}"
