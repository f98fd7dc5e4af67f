"""What a good run misuses: what is confirmed, and the cure that a run of the patched script has shown."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from halfguard.investigation.good_runs import fix_good_run
from halfguard.investigation.misuse import cures_of
from halfguard.investigation.passes import (
    Made,
    Misused,
    MisuseKind,
    PassKind,
    PassResult,
    Place,
    Target,
    TrialKind,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.proof import PROOF, Proven
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.working_copy import WorkingCopy
from halfguard.records.autopsy import ReplayTrial
from halfguard.repairs.source_file import unified_diff
from tests.repairs.patched_script import at, patched, write

SCRIPT = """
import torch
net = Net()
opt = torch.optim.SGD(net.parameters())
for x in data:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = net(x).exp().reciprocal().sum()
    loss.backward()
    opt.step()
"""


@dataclass
class Passes(Investigation):
    """Answers each pass with what a test has prepared, and keeps what was asked for."""

    judged: dict[str, PassResult] = field(default_factory=dict)  # by the kind of trial
    again: tuple[Misused, ...] = ()  # what the patched script still does
    asked: list[PassKind] = field(default_factory=list)
    fp32: tuple[float, ...] = ()  # losses in FP32
    casts: tuple[Place, ...] = ()  # that the run in FP32 has left out

    def run(self, kind: PassKind, doing: str, **options: Any) -> PassResult:
        if options.get("in_fp32"):
            (self.place / "fp32.bin").write_bytes(array("d", self.fp32).tobytes())
            return PassResult(ended="finished", backward=10, steps=10, casts=self.casts)
        self.asked.append(kind)
        change: TrialPlan | None = options.get("change")
        patch: Patched | None = options.get("trial")
        if kind == "judge":
            return self.judged.get("fp32" if change is None else change.kind, PassResult())
        assert patch is not None  # only the patched script is run again
        if kind == "inspect":
            return PassResult(ended="steps", misuse=self.again)
        return PassResult(ended="finished", backward=10, steps=10)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Passes:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.py", SCRIPT)
    copy = WorkingCopy(tmp_path / "copy", (tmp_path,))
    return Passes(Target(name="train.py"), tmp_path, tmp_path, lambda *_: None, copy=copy)


def first_run(one: Passes, **facts: Any) -> PassResult:
    script = one.folder / "train.py"
    made = Made(optimizer=at(script, "SGD"), autocast=at(script, "autocast"), **facts)
    return PassResult(ended="finished", backward=10, steps=10, seconds=1.0, made=made)


def seen(kind: MisuseKind, place: Place, **facts: Any) -> PassResult:
    """Return an inspection that has seen one thing."""
    misused = Misused(kind=kind, sentence=f"It is {kind}.", place=place, backward=5, **facts)
    return PassResult(ended="steps", misuse=(misused,))


def no_scaler(one: Passes) -> PassResult:
    place = at(one.folder / "train.py", "backward")
    return seen("no scaler", place, norms=(1e-8, 0.0), sizes=(2, 1), unsure=True)


def in_fp32(
    one: Passes, *gradients: float, differs_at: int | None = None, kind: TrialKind = "fp32"
) -> PassResult:
    """Return a trial in FP32, or of another kind, with these gradients."""
    file = one.place / f"{kind}.gradients"
    file.write_bytes(array("d", gradients).tobytes())
    good = ReplayTrial(name=kind, good=True)
    trial = TrialResult(plan=TrialPlan(name=kind, kind=kind), trial=good, gradients=str(file))
    return PassResult(ended="event", trials=(trial,), differs_at=differs_at)


def test_a_scaler_is_added_if_fp32_has_larger_gradients(one: Passes) -> None:
    one.judged["fp32"] = in_fp32(one, 3e-6, 4e-6, 1e-7)
    (told,), proven = fix_good_run(one, first_run(one, autocast_device="cpu"), no_scaler(one))
    assert told.kind == "no scaler"
    assert 1 < 5e-6 * told.scale < 100  # the largest norm
    assert proven.cure.trial == PROOF
    text = patched(one.folder / "train.py", proven.cure.patch)
    assert f'scaler = torch.amp.GradScaler("cpu", init_scale={told.scale!r})\n' in text
    assert "    scaler.scale(loss).backward()\n    scaler.step(opt)\n    scaler.update()\n" in text


@pytest.mark.parametrize(
    ("gradients", "differs_at"),
    [
        ((8e-9, 6e-9, 0.0), None),  # they are as small in FP32
        ((3e-6, 4e-6, 1e-7), 4),  # of another run
        ((3e-6, 4e-6), None),  # of other parameters
        ((0.0, 0.0, 0.0), None),
    ],
)
def test_small_gradients_are_not_told_if_fp32_does_not_show_that_they_are_lost(
    one: Passes, gradients: tuple[float, ...], differs_at: int | None
) -> None:
    one.judged["fp32"] = in_fp32(one, *gradients, differs_at=differs_at)
    told, proven = fix_good_run(one, first_run(one, autocast_device="cpu"), no_scaler(one))
    assert told == ()
    assert proven.cure is None


@pytest.mark.parametrize(("factor", "told"), [(-1.0, 1), (1.01, 0)])
def test_gradients_of_the_right_size_and_the_wrong_direction_are_rounding_errors(
    one: Passes, factor: float, told: int
) -> None:
    one.judged["fp32"] = in_fp32(one, *[1e-6] * 4)
    one.judged["unchanged"] = in_fp32(one, *[1e-6 * factor] * 4, kind="unchanged")
    place = at(one.folder / "train.py", "backward")
    kept = seen("no scaler", place, norms=(2e-6 * abs(factor),), sizes=(4,), unsure=True)
    found, _ = fix_good_run(one, first_run(one, autocast_device="cpu"), kept)
    assert len(found) == told


def test_small_gradients_without_fp16_autocast_are_not_even_tried(one: Passes) -> None:
    told, _ = fix_good_run(one, first_run(one), no_scaler(one))  # BF16, or FP32
    assert told == ()
    assert one.asked == []


def test_a_scaler_that_is_off_is_told_once(one: Passes) -> None:
    one.judged["fp32"] = in_fp32(one, 3e-6, 4e-6, 1e-7)
    off = Misused(kind="scaler off", sentence="It does nothing.", place=None)
    first = first_run(one, autocast_device="cpu").model_copy(update={"misuse": (off,)})
    assert fix_good_run(one, first, no_scaler(one))[0] == (off,)


def test_of_a_long_run_only_what_needs_no_trial_is_told(one: Passes) -> None:
    first = first_run(one, autocast_device="cpu").model_copy(update={"seconds": 600.0})
    assert fix_good_run(one, first, no_scaler(one))[0] == ()
    lost = seen("lost updates", at(one.folder / "train.py", "step"))
    told, proven = fix_good_run(one, first, lost)
    assert [misused.kind for misused in told] == ["lost updates"]
    assert proven.cure is None
    assert one.asked == []


def line_trial(one: Passes, kind: Any, *, good: bool, new: str = "") -> PassResult:
    """Return a trial of the line that overflows; a good one has a patch."""
    script = one.folder / "train.py"
    text = script.read_text("utf-8")
    patch = unified_diff(str(script), text, text.replace("net(x)", new)) if new else ""
    shown = ReplayTrial(name="this line in FP32", good=good)
    plan = TrialPlan(name="this line in FP32", kind=kind)
    trial = TrialResult(plan=plan, trial=shown, patch=patch)
    return PassResult(ended="event", trials=(trial,))


def test_an_overflow_that_was_swallowed_is_cured_by_the_first_line_in_fp32_that_helps(
    one: Passes,
) -> None:
    swallowed = seen("swallowed", at(one.folder / "train.py", "exp"))
    one.judged["statement"] = line_trial(one, "statement", good=False, new="net(x).double()")
    one.judged["slice"] = line_trial(one, "slice", good=True)  # without a patch
    one.judged["function"] = line_trial(one, "function", good=True, new="net(x).float()")
    (told,), proven = fix_good_run(one, first_run(one), swallowed)
    assert told.kind == "swallowed"
    assert proven.cure.trial == PROOF
    text = patched(one.folder / "train.py", proven.cure.patch)
    assert "        loss = net(x).float().exp().reciprocal().sum()\n" in text
    assert one.asked == ["judge", "judge", "judge", "sense", "inspect"]


def test_a_patch_after_which_an_overflow_is_swallowed_as_before_is_no_cure(one: Passes) -> None:
    swallowed = seen("swallowed", at(one.folder / "train.py", "exp"))
    one.judged["statement"] = line_trial(one, "statement", good=True, new="net(x).float()")
    one.again = swallowed.misuse
    told, proven = fix_good_run(one, first_run(one), swallowed)
    assert [misused.kind for misused in told] == ["swallowed"]
    assert proven.cure is None
    in_fp32, *patched = [trial.note for trial in proven.trials]
    assert in_fp32 == "10 steps"
    assert patched == ["the same fault remains"] * 3  # the line, BF16, and all of it in FP32


def test_lost_updates_are_told_with_the_line_of_the_cast(one: Passes) -> None:
    script = one.folder / "train.py"
    write(script, SCRIPT.replace("Net()", "Net().bfloat16()"))
    lost = seen("lost updates", at(script, "step"), dtype="bfloat16")
    (told,), proven = fix_good_run(one, first_run(one, half_weights=at(script, "Net")), lost)
    assert told.sentence.endswith("train.py:2: net = Net().bfloat16().")
    assert "dtype=torch.bfloat16)(net.forward)" in patched(script, proven.cure.patch)


def test_lightning_keeps_weights_in_fp32_if_it_is_asked_to(one: Passes) -> None:
    script = one.folder / "train.py"
    text = 'trainer = Trainer(precision="bf16-true")\ntrainer.fit(net)\n'
    write(script, text)
    lost = seen("lost updates", at(script, "fit"), dtype="bfloat16")
    first = PassResult(ended="finished", backward=10, made=Made(half_weights=at(script, "fit")))
    _, proven = fix_good_run(one, first, lost)
    assert 'precision="bf16-mixed"' in patched(script, proven.cure.patch)
    assert 'train.py:1: trainer = Trainer(precision="bf16-true").' in proven.cure.sentence


@pytest.mark.parametrize("kind", ["lost digits", "lost increments"])
def test_digits_that_half_weights_lose_are_kept_by_fp32_weights_that_no_optimizer_has(
    one: Passes, kind: MisuseKind
) -> None:
    script = one.folder / "train.py"
    write(script, SCRIPT.replace("Net()", "Net().bfloat16()"))
    lost = seen(kind, at(script, "exp"), dtype="bfloat16")
    first = first_run(one, half_module=at(script, "Net"))
    cures = [cure.patch for cure in cures_of(lost.misuse[0], first)]
    assert any("dtype=torch.bfloat16)(net.forward)" in patch for patch in cures)


def test_ids_are_kept_in_fp32_where_they_were_cast(one: Passes) -> None:
    script = one.folder / "train.py"
    write(script, f"table = rows.to(dtype)\n{SCRIPT}")
    one.casts = (at(script, "rows"),)
    ids = seen("rounded integers", at(script, "exp"))
    _, proven = fix_good_run(one, first_run(one), ids)
    assert "table = rows.float()" in patched(script, proven.cure.patch)


@pytest.mark.parametrize("last", [0.1, 0.9])
def test_many_lost_updates_are_told_if_fp32_learns_more(one: Passes, last: float) -> None:
    script = one.folder / "train.py"
    write(script, SCRIPT.replace("Net()", "Net().half()"))
    one.fp32 = (1.0, 1.0, 0.5, 0.5, 0.2, 0.2, 0.1, 0.1)
    losses = array("d", [1.0, 1.0, 0.9, 0.9, 0.9, 0.9, last, last])
    (one.place / "losses.bin").write_bytes(losses.tobytes())
    lost = seen("lost updates", at(script, "step"), dtype="float16", unsure=True)
    told, _ = fix_good_run(one, first_run(one, half_weights=at(script, "Net")), lost)
    assert [misused.kind for misused in told] == (["lost updates"] if last > 0.5 else [])


def test_a_run_without_anything_is_not_run_again(one: Passes) -> None:
    assert fix_good_run(one, first_run(one), PassResult(ended="steps"))[0] == ()
    assert one.asked == []


def test_a_run_that_was_stopped_and_has_no_fault_is_not_run_in_fp32(
    one: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Passes, "run", None)
    stopped = first_run(one).model_copy(update={"ended": "steps"})
    assert fix_good_run(one, stopped, None) == ((), Proven())
