"""A run in which one operation keeps failing in half: the guard finds it, proves an island, and goes on."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models.planted import PERIODIC
from benchmarks.models.planted.base import Periodic
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.guard.guard import Guard
from halfguard.guard.healing.plan_file import PlanFile
from halfguard.journal import read_rows
from halfguard.precision.islands import is_fp32_island
from halfguard.records import Action, HealingRow, StepRow
from halfguard.records.plan import Island, PrecisionPlan
from tests.guard.healing import soak
from tests.guard.healing.jobs import (
    BY_NAME,
    FEATURES,
    HEAL,
    JOBS,
    RETRY,
    Batch,
    Cubes,
    Job,
    Residual,
    Variance,
    loss_fn,
)
from tests.guard.helper import frozen, islands, same
from tests.support.devices import place

pytestmark = pytest.mark.usefixtures("device", "seed")


def train(job: Job, config: Any, steps: int = 40, **options: Any) -> tuple[Guard, list[Action]]:
    work = job.job(0)
    torch.manual_seed(0)
    guard = Guard(work.model, work.optimizer, config, **options)
    return guard, [guard.step(work.loss, batch).action for batch in work.take(steps)]


def go_on(guard: Guard, work: hg.Workload, steps: range) -> None:
    for batch in list(work.take(steps.stop))[steps.start :]:
        guard.step(work.loss, batch)


def state(guard: Guard) -> Any:
    return frozen([guard.model.state_dict(), guard.optimizers[0].state_dict()])


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_retries_end_with_the_healing(job: Job, tmp_path: Path) -> None:
    guard, actions = train(job, HEAL, 80, run_dir=tmp_path)
    plan = PrecisionPlan.load(tmp_path / "plan.yaml")
    assert len(plan.islands) + len(plan.lines) >= 1
    guard.close()
    rows = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, HealingRow)]
    assert {row.action for row in rows} == {"applied"}
    healed = max(row.step for row in rows)
    assert "jobs.py" in rows[0].text
    assert "plan.yaml" in rows[0].text
    later = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, StepRow)]
    # After it, gradients may overflow while the loss scale finds its level; no forward pass does.
    assert not [row for row in later if row.step > healed and row.cause == "forward_overflow"]
    assert actions[: healed + 1].count(Action.RETRY) == 3


@pytest.mark.on_standin
def test_the_smallest_module_is_taken(tmp_path: Path) -> None:
    guard, actions = train(BY_NAME["conv"], HEAL, 16, run_dir=tmp_path)
    assert actions.count(Action.RETRY) == 3
    assert islands(guard.model) == ["scale"]


def test_without_a_retry_steps_are_skipped_until_then() -> None:
    guard, actions = train(BY_NAME["conv"], {"heal": {}}, 16)
    assert actions.count(Action.SKIP) == 3
    assert islands(guard.model) == ["scale"]


def test_a_fault_of_the_forward_pass_does_not_wait_until_the_loss_scale_is_low() -> None:
    class Capped(nn.Module):
        """Squares that overflow and are capped: the loss is finite, and a gradient is 0 times infinity."""

        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x * x * self.gain).clamp(max=10.0)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), Capped(), nn.Linear(8, 4))

    guard, actions = train(Job("capped", model, 1, 900.0, loss_fn), {"heal": {}}, 8)
    assert actions[:3] == [Action.SKIP] * 3
    assert islands(guard.model) == ["1"]
    assert guard.scaler.get_scale() >= 65536 / 2**3
    assert actions[-1] is Action.APPLY


def test_a_step_before_the_healing_is_that_of_a_run_without_it() -> None:
    job = BY_NAME["conv"]
    with_heal, _ = train(job, HEAL, 6)
    without, _ = train(job, RETRY, 6)
    assert islands(with_heal.model)
    assert not islands(without.model)
    assert same(state(with_heal), state(without))


@pytest.mark.on_standin
def test_a_fault_outside_every_module_is_healed_by_its_line(tmp_path: Path) -> None:
    _, actions = train(BY_NAME["loss"], HEAL, 25, run_dir=tmp_path)
    plan = PrecisionPlan.load(tmp_path / "plan.yaml")
    assert not plan.islands
    assert plan.lines[0].code.startswith("energy = logits * ")
    assert actions.count(Action.RETRY) == 3


def test_several_operations_of_one_step_are_healed_together() -> None:
    class Two(nn.Module):
        """Two faults in the same batch."""

        def __init__(self) -> None:
            super().__init__()
            self.inp, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
            self.squares, self.cubes = Variance(), Cubes()

        def forward(self, x: Tensor) -> Tensor:
            h = self.inp(x)
            return self.head(self.squares(h) + self.cubes(h))

    guard, actions = train(Job("two", Two, 4, 300.0, loss_fn), HEAL, 24)
    assert islands(guard.model) == ["squares", "cubes"]
    assert actions[:12].count(Action.RETRY) == 3


def test_the_line_of_all_blocks_is_cheaper_than_the_blocks(tmp_path: Path) -> None:
    guard, actions = train(BY_NAME["gate"], HEAL, 24, run_dir=tmp_path)
    assert not islands(guard.model)
    (line,) = PrecisionPlan.load(tmp_path / "plan.yaml").lines
    assert line.code.startswith("return self.down(h * h * h / ")
    assert actions.count(Action.RETRY) == 3


def test_an_island_that_does_not_hold_is_taken_back(tmp_path: Path) -> None:
    class Breaking(nn.Module):
        """A sum of squares; once it is ``broken`` it computes in half, whatever contains it."""

        broken = lowers = False

        def forward(self, x: Tensor) -> Tensor:
            x = x.half() if self.broken and self.lowers else x
            total = (x * x).sum(-1, keepdim=True)
            return x * (total / (total + 1.0))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.squares, self.last = nn.Linear(8, 8), Breaking(), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.squares.lowers = torch.is_autocast_enabled(x.device.type)
            return self.last(self.squares(self.first(x)))

    job = Job("breaking", Net, 2, 900.0, loss_fn)
    work = job.job(0)
    guard = Guard(work.model, work.optimizer, HEAL, run_dir=tmp_path)
    for batch in work.take(8):
        guard.step(work.loss, batch)
    assert islands(work.model) == ["squares"]
    Breaking.broken = True
    for batch in work.take(2):
        guard.step(work.loss, batch)
    guard.close()
    rows = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, HealingRow)]
    assert [row.action for row in rows] == ["applied", "taken back", "applied"]
    assert not islands(work.model)
    assert PrecisionPlan.load(tmp_path / "plan.yaml").lines[0].code.startswith("total = ")


class LargeKeys(nn.Module):
    """Attention whose keys have a large bias, as Qwen2's: a sum of scores that softmax does not see."""

    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(1, 8), nn.Linear(8, 4)
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = 0.3 if rounds else 1e-4
        with torch.no_grad():
            self.queries.bias.fill_(10.0)
            self.keys.bias.fill_(1.2e4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x[..., None])
        scores = self.queries(h) @ self.keys(h).mT * self.scale
        return self.head((scores.softmax(-1, dtype=torch.float32) @ h).mean(1))


@pytest.mark.parametrize("rounds", [True, False])
def test_a_product_is_rescaled_and_runs_in_fp32_only_if_what_it_reads_was_rounded(
    rounds: bool, tmp_path: Path
) -> None:
    job = Job("keys", lambda: LargeKeys(rounds=rounds), 1, 1.0, loss_fn)
    guard, actions = train(job, HEAL, 12, run_dir=tmp_path)
    guard.close()
    plan = PrecisionPlan.load(tmp_path / "plan.yaml")
    assert [(line.code[:6], line.kind) for line in plan.lines] == [
        ("scores", "fp32" if rounds else "rescaled")
    ]
    layers = [("keys", "rescaled")] if rounds else []
    assert [(island.module, island.kind) for island in plan.islands] == layers
    assert actions[3:] == [Action.APPLY] * 9


@pytest.mark.parametrize("by_user", [True, False])
def test_a_layer_that_was_rescaled_before_it_ran_in_fp32_does_so_in_the_next_run(
    by_user: bool, tmp_path: Path
) -> None:
    rescaled, wide = Island(module="0", kind="rescaled"), Island(module="0")
    given = PrecisionPlan(islands=(rescaled,) if by_user else ())
    given.save(tmp_path / "given.yaml")
    healed = [wide] if by_user else [rescaled, wide]
    PlanFile(tmp_path, given, "fp16-mixed", torch.device("cpu")).write(healed)
    assert PrecisionPlan.load(tmp_path / "plan.yaml").islands == (wide,)
    model = place(nn.Sequential(nn.Linear(8, 4)))
    config = HEAL | {"plan": str(tmp_path / "given.yaml")}
    Guard(model, torch.optim.SGD(model.parameters(), 0.1), config, run_dir=tmp_path).close()
    assert is_fp32_island(model.get_submodule("0"))


def test_past_the_limit_the_guard_goes_on_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Two(nn.Module):
        """Two faults that never happen in the same batch."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Variance(), Cubes()
            self.inp, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inp(x)
            small = x / x.abs().amax(-1, keepdim=True).clamp(min=1.0)
            first = x[0, 0] > 0
            loud, quiet = (self.one, self.two) if first else (self.two, self.one)
            return self.head(loud(x) + quiet(small))

    job = Job("two", Two, 1, 300.0, loss_fn)
    work = job.job(0)
    guard = Guard(work.model, work.optimizer, RETRY | {"heal": {"islands": 1}})
    actions = [guard.step(work.loss, batch).action for batch in work.take(30)]
    assert len(islands(work.model)) == 1
    assert Action.RETRY in actions[20:]
    assert sum("heal stops adding islands" in record.message for record in caplog.records) == 1


def test_a_fault_that_fp32_has_too_gets_no_island(caplog: pytest.LogCaptureFixture) -> None:
    def root_of_zero(model: nn.Module, batch: Batch) -> Tensor:
        return loss_fn(model, batch) + torch.log(model(batch[0]).float() * 0).sum()

    job = Job("log of 0", BY_NAME["conv"].model, 2, 1.0, root_of_zero)
    guard, _ = train(job, HEAL | {"skip": {"max_consecutive": 100}}, 6)
    assert not islands(guard.model)
    assert sum("not finite in FP32 either" in record.message for record in caplog.records) == 1


@pytest.mark.slow
def test_the_loss_scale_finding_its_level_is_no_reason() -> None:
    class Loud(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 1e5

    def loud(model: nn.Module, batch: Batch) -> Tensor:
        return loss_fn(lambda x: Loud.apply(model(x)), batch)  # type: ignore[arg-type]

    job = Job("scale", Residual, 4, 1.0, loud)
    guard, actions = train(job, HEAL, 12)
    assert actions.count(Action.RETRY) >= 3  # while the scale falls
    assert not islands(guard.model)


class Focal(nn.Module):
    """The root of 1 - p: in half, p is rounded to 1, where the derivative is not finite."""

    def forward(self, logits: Tensor) -> Tensor:
        return (1 - torch.sigmoid(logits)) ** 0.5


class SmallPart(nn.Module):
    """The root of a small part, which is rounded to 0; no factor of 0 makes the infinite derivative NaN."""

    def forward(self, logits: Tensor) -> Tensor:
        return (1 - (1 - 1e-5 * nn.functional.softplus(logits))) ** 0.5


@pytest.mark.parametrize(
    ("root", "scale"), [(Focal, 1.0), (SmallPart, 0.125)], ids=["nan", "infinite"]
)
def test_what_no_scale_can_help_is_healed_at_a_scale_of_1_although_the_scale_can_fall(
    root: type[nn.Module], scale: float
) -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.root = nn.Linear(FEATURES, 1), root()

        def forward(self, x: Tensor) -> Tensor:
            return self.root(self.body(x) + 9)

    def mean(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0].abs()).float().mean()

    job = Job("root", Detector, 1, 1.0, mean)
    config = HEAL | {"scale": {"init": 1.0, "floor": 2.0**-14}}
    guard, actions = train(job, config, 8)
    assert islands(guard.model) == ["root"]
    assert actions == [Action.RETRY] * 3 + [Action.APPLY] * 5
    assert guard.scaler.get_scale() == scale  # NaN at a scale of 1 does not lower it


# -- plan and state


def test_the_next_run_starts_from_the_plan(tmp_path: Path) -> None:
    train(BY_NAME["conv"], HEAL, 10, run_dir=tmp_path)[0].close()
    guard, actions = train(BY_NAME["conv"], HEAL, 10, run_dir=tmp_path)
    assert islands(guard.model) == ["scale"]
    assert actions == [Action.APPLY] * 10


@pytest.mark.slow
def test_the_plan_of_a_run_serves_a_run_without_heal(tmp_path: Path) -> None:
    for name in ("conv", "loss"):
        folder = tmp_path / name
        train(BY_NAME[name], HEAL, 20, run_dir=folder)[0].close()
        _, actions = train(BY_NAME[name], {"plan": str(folder / "plan.yaml")}, 20)
        assert actions == [Action.APPLY] * 20


def test_the_users_plan_stays_part_of_the_plan(tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text("kind: plan\nschema_version: 1\nislands:\n- module: head\n  reason: mine\n")
    train(BY_NAME["conv"], HEAL | {"plan": str(given)}, 10, run_dir=tmp_path / "run")
    plan = PrecisionPlan.load(tmp_path / "run" / "plan.yaml")
    assert plan.modules == ("head", "scale")
    assert plan.islands[0].reason == "mine"


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    train(BY_NAME["conv"], HEAL, 10, run_dir=tmp_path)[0].close()
    with pytest.raises(UsageError, match="has no such module"):
        train(BY_NAME["gate"], HEAL, 1, run_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize(
    "stop", [3, 5, 9]
)  # before the healing, with two failures counted, and after it
def test_stop_and_resume_is_bitwise(stop: int) -> None:
    job = BY_NAME["conv"]
    whole, _ = train(job, HEAL, 14)
    first, _ = train(job, HEAL, stop)
    saved = copy.deepcopy([state(first), first.state_dict()])
    work = job.job(1)
    guard = Guard(work.model, work.optimizer, HEAL)
    work.model.load_state_dict(saved[0][0])
    work.optimizer.load_state_dict(saved[0][1])
    guard.load_state_dict(saved[1])
    go_on(guard, work, range(stop, 14))
    assert same(state(guard), state(whole))
    assert same(guard.state_dict()["healing"], whole.state_dict()["healing"])


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.on_standin
def test_resume_from_a_snapshot_is_bitwise(tmp_path: Path) -> None:
    config = HEAL | {"recovery": {"store": "disk", "every": 4}}
    job = BY_NAME["conv"]
    whole, _ = train(job, config, 20, run_dir=tmp_path / "whole")
    stopped, _ = train(job, config, 13, run_dir=tmp_path / "stopped")
    stopped.close()
    work = job.job(1)
    guard = Guard(work.model, work.optimizer, config, run_dir=tmp_path / "stopped")
    assert guard.resume()
    begin = guard.step_index
    assert begin < 13
    go_on(guard, work, range(begin, 20))
    assert islands(guard.model) == ["scale"]
    assert same(state(guard), state(whole))


@pytest.mark.slow
def test_resume_from_a_snapshot_older_than_the_plan_repeats_the_healing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = HEAL | {"recovery": {"store": "disk", "every": 3}}
    job = BY_NAME["conv"]
    whole, _ = train(job, config, 16, run_dir=tmp_path / "whole")
    whole.close()
    stopped, _ = train(job, config, 7, run_dir=tmp_path / "stopped")
    stopped.close()
    assert PrecisionPlan.load(tmp_path / "stopped" / "plan.yaml").modules == ("scale",)
    work = job.job(1)
    guard = Guard(work.model, work.optimizer, config, run_dir=tmp_path / "stopped")
    assert islands(guard.model) == ["scale"]
    assert guard.resume()
    begin = guard.step_index
    assert begin < 5  # the island was made after step 5
    assert not islands(guard.model)
    assert "before the guard added them: module scale." in caplog.text
    go_on(guard, work, range(begin, 16))
    assert same(state(guard), state(whole))
    assert same(guard.state_dict()["healing"], whole.state_dict()["healing"])
    guard.close()
    plans = [(tmp_path / name / "plan.yaml").read_text() for name in ("whole", "stopped")]
    assert plans[0] == plans[1]


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("has_plan", [True, False])
def test_resume_does_not_round_the_weights_of_an_island(tmp_path: Path, has_plan: bool) -> None:
    config = {
        "precision": "fp16-weights", "heal": {}, "watch": {"every": 4}, "scale": {"init": 64.0},
        "recovery": {"store": "disk", "every": 3},
    }  # fmt: skip

    def make(seed: int, name: str) -> tuple[hg.Workload, Guard]:
        work = SCALED.job(seed)
        work.model.half()
        optimizer = hg.MasterWeights(torch.optim.AdamW(work.model.parameters(), lr=2e-3, eps=1e-6))
        return work, Guard(work.model, optimizer, config, run_dir=tmp_path / name)

    data = [(x.half(), y) for x, y in SCALED.batches(14)]
    ends = []
    for stop in (14, 9):
        work, guard = make(0, str(stop))
        for batch in data[:stop]:
            guard.step(work.loss, batch)
        guard.close()
        ends.append((work.model.state_dict(), islands(work.model)))
    assert ends[1][1] == ["norm"]
    if not has_plan:
        (tmp_path / "9" / "plan.yaml").unlink()
    work, guard = make(1, "9")
    assert guard.resume()
    begin = guard.step_index
    assert 3 <= begin < 9
    for batch in data[begin:]:
        guard.step(work.loss, batch)
    assert islands(work.model) == ["norm"]
    assert same(work.model.state_dict(), ends[0][0])


# -- what belongs to the model


def test_the_averaged_copy_follows() -> None:
    work = BY_NAME["conv"].job(0)
    average = AveragedModel(work.model)
    guard = Guard(work.model, work.optimizer, HEAL, ema=average)
    for batch in work.take(10):
        guard.step(work.loss, batch)
    assert islands(average.module) == islands(work.model) == ["scale"]


def test_micro_batches_are_tried_together() -> None:
    guard, actions = train(BY_NAME["conv"], HEAL | {"accumulate": 2}, 24)
    assert actions.count(Action.RETRY) == 3
    assert islands(guard.model) == ["scale"]


@pytest.mark.on_standin
def test_own_generators_and_buffers_are_as_after_a_retry() -> None:
    generator = torch.Generator(device="cpu").manual_seed(0)

    def noisy(model: nn.Module, batch: Batch) -> Tensor:
        noise = torch.randn(batch[0].shape, generator=generator, device="cpu")
        return loss_fn(model, (batch[0] + 0.01 * place(noise), batch[1]))

    ends = []
    for config in (HEAL, RETRY):
        generator.manual_seed(0)
        job = Job("noisy", BY_NAME["conv"].model, 2, 600.0, noisy)
        guard, _ = train(job, config, 6)
        ends.append([state(guard), frozen(generator.get_state()), frozen(torch.get_rng_state())])
    assert same(*ends)


# -- audits


class RMSNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 16), RMSNorm(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)))


SWALLOWS = Job("rms", Normed, 1, 900.0, loss_fn)


class ScaledNorm(RMSNorm):
    """With weights of its own, which an island keeps in FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


def scaled() -> Normed:
    model = Normed()
    model.norm = ScaledNorm()
    return model


SCALED = Job("scaled", scaled, 1, 900.0, loss_fn)


def test_an_alarm_of_an_audit_heals() -> None:
    work = SWALLOWS.job(0)
    guard = Guard(work.model, work.optimizer, {"heal": {}})
    batch = next(iter(work.take(1)))
    before = state(guard)
    report = guard.audit(work.loss, batch)
    assert report.findings
    assert same(state(guard), before)
    guard.step(work.loss, batch)
    assert islands(work.model) == ["norm"]
    assert not guard.audit(work.loss, batch).findings


@pytest.mark.on_standin
def test_watch_raises_the_alarm_by_itself(tmp_path: Path) -> None:
    config = {"heal": {}, "watch": {"every": 4}, "scale": {"init": 1024.0}}
    guard, actions = train(SWALLOWS, config, 12, run_dir=tmp_path)
    assert actions == [Action.APPLY] * 12  # nothing but the audit saw it
    assert islands(guard.model) == ["norm"]


def test_audit_without_heal_is_refused() -> None:
    work = SWALLOWS.job(0)
    guard = Guard(work.model, work.optimizer)
    with pytest.raises(UsageError, match="heal, which is disabled"):
        guard.audit(work.loss, next(iter(work.take(1))))


@pytest.mark.slow
@pytest.mark.parametrize("planted", PERIODIC, ids=lambda planted: planted.name)
def test_the_module_at_fault_is_healed(planted: Periodic) -> None:
    run = soak.train(planted.job, 0, HEAL, 4 * planted.every + 2)
    assert run.modules == (planted.module,)
    assert len(run.islands) == 1
    assert run.failed_forward == 3
    assert run.failed_after == 0


def test_heal_says_why_it_cannot_help_a_model_with_its_own_autocast(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OwnAutocast(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                return super().forward(x) * 1e4

    torch.manual_seed(0)
    model = OwnAutocast(4, 4)
    config = HEAL | {"precision": "fp32"}
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=1e-9), config)
    for _ in range(3):
        guard.step(lambda model, x: model(x).float().square().mean(), torch.full((8, 4), 100.0))
    assert caplog.text.count("the guard's precision is fp32") == 1
