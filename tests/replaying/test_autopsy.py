"""The statements of an autopsy, and those that it must not make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models.zoo.base import noise, seeded
from torch import Tensor, nn

from halfguard.errors import RecordError, UsageError
from halfguard.guard.guard import Guard
from halfguard.incident import open_incident, write_incident
from halfguard.precision.master_weights import MasterWeights
from halfguard.records import Cause
from halfguard.records.autopsy import Autopsy
from halfguard.records.incident import MicroBatchRecord
from halfguard.replaying.autopsy import replay
from halfguard.report.autopsy import autopsy_page
from halfguard.report.markdown import to_markdown
from halfguard.workload import Workload
from tests.replaying.helper import broken, build, edited, glitched, job, mean, overflowing
from tests.support.devices import place

pytestmark = pytest.mark.usefixtures("device", "seed")


@pytest.mark.on_standin
def test_an_overflow_is_cured_by_its_module_in_fp32(tmp_path: Path) -> None:
    incident = broken(tmp_path, [overflowing()])
    doing: list[str] = []
    autopsy = replay(incident, job(), watch=doing.append)
    assert autopsy.reproduced == "bitwise"
    assert (autopsy.culprit.op, autopsy.culprit.module) == ("mul", "1")
    assert (autopsy.cure.what, autopsy.cure.trial) == (
        "island",
        "module 1 in FP32 and module 2 rescaled",
    )
    assert doing[:2] == ["the original step", "the first NaN or Inf"]
    assert Autopsy.from_json(autopsy.to_json()) == autopsy


def test_a_fault_that_came_once_is_given_no_cause(tmp_path: Path) -> None:
    incident, workload = glitched(tmp_path)
    assert incident.record.step.cause is Cause.FORWARD_OVERFLOW
    for again in (workload, job()):  # with the hook, and without it
        autopsy = replay(incident, again)
        assert autopsy.reproduced == "no"
        assert (autopsy.culprit, autopsy.cure, autopsy.trials) == (None, None, ())
        assert any("hardware" in suspect for suspect in autopsy.suspects)


def test_an_incident_of_cuda_is_repeated_under_its_rules_and_says_so(tmp_path: Path) -> None:
    """exp stays in half under the CPU's rules and overflows; CUDA computes it in float32."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return torch.exp(model(batch).half() * 0 + 12).log().mean()

    incident = broken(tmp_path, [noise(0, 6, 4)], job(model, loss))
    there = replay(incident, job(model, loss))
    # Nothing but NaN is left of that step, so nothing can be compared bit for bit.
    assert (there.reproduced, "emulated" in there.how) == ("same fault", False)
    autopsy = replay(edited(incident, tmp_path, device="cuda"), job(model, loss))
    assert autopsy.reproduced == "no"
    assert "CUDA's autocast rules, emulated" in autopsy.how
    assert "device: cuda then, cpu now" in autopsy.differences

    incident = broken(tmp_path / "b", [overflowing()])
    autopsy = replay(edited(incident, tmp_path / "b", device="cuda"), job())
    assert autopsy.reproduced in ("bitwise", "same fault")
    assert autopsy.culprit.op == "mul"
    assert autopsy.cure is not None


def test_a_spike_is_good_only_when_it_is_gone(tmp_path: Path) -> None:
    batch = noise(0, 6, 4)
    batch[3] *= 60
    config = {"precision": "fp32", "skip": {"max_grad_norm": 50.0}}
    incident = broken(tmp_path, [noise(1, 6, 4), batch], config=config)
    assert incident.record.step.cause is Cause.GRADIENT_SPIKE
    autopsy = replay(incident, job())
    assert (autopsy.reproduced, autopsy.culprit, autopsy.samples) == ("bitwise", None, (3,))
    assert autopsy.cure.what == "data"
    assert [trial.good for trial in autopsy.trials if "bf16" in trial.name] == [False]


def bpr(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch) - 14
    chance = torch.sigmoid(logits)
    shifted = chance + 1e-8
    return -torch.log(shifted).mean()


def test_the_logarithm_of_a_probability_is_rewritten_across_assignments(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight)
    batch = noise(0, 6, 4)
    batch[3] = -3
    incident = broken(tmp_path, [batch], job(model, bpr))
    autopsy = replay(edited(incident, tmp_path, device="cuda"), job(model, bpr))
    assert autopsy.culprit.op == "log"
    assert "log(sigmoid(x)) as torch.nn.functional.logsigmoid(x)" in autopsy.cure.sentence
    trials = {trial.name: trial for trial in autopsy.trials}
    rewritten = trials[autopsy.cure.trial]
    assert rewritten.largest_scale == 64  # the initial scale of this run
    assert rewritten.error_as_meant is not None
    assert rewritten.error_as_meant < 0.01
    assert rewritten.error_as_written is not None
    assert rewritten.error_as_written > 0.5
    assert trials["stable operations for log"].largest_scale == 0
    assert autopsy.saturation is not None
    assert autopsy.saturation > 0.5
    assert "The loss saturates in FP32 too" in to_markdown(autopsy_page(autopsy))


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-3)


def test_a_swallowed_overflow_is_named_though_the_step_is_finite(tmp_path: Path) -> None:
    model = seeded(0, lambda: nn.Sequential(nn.Linear(4, 4), Norm(), nn.Linear(4, 1)))
    batch = noise(0, 6, 4)
    batch[3] *= 2000
    config = {"skip": {"max_grad_norm": 1e-4}}
    incident = broken(tmp_path, [batch], job(model), config=config)
    autopsy = replay(incident, job(model))
    assert (autopsy.culprit.swallowed, autopsy.culprit.module) == ("overflow", "1")
    assert "has a swallowed overflow" in to_markdown(autopsy_page(autopsy))


def test_gradients_beyond_half_are_cured_by_a_lower_scale(tmp_path: Path) -> None:
    config = {"scale": {"init": 2.0**20, "floor": 2.0**20}}
    incident = broken(tmp_path, [noise(0, 6, 4)], config=config)
    assert incident.record.step.cause is Cause.GRADIENT_OVERFLOW
    autopsy = replay(incident, job())
    assert autopsy.culprit.phase == "backward"
    assert any(trial.good and trial.name.startswith("loss scale") for trial in autopsy.trials)


def test_half_weights_with_masters_are_repeated_bitwise(tmp_path: Path) -> None:
    model = build().half()
    workload = job(model)
    workload.optimizer = MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1))
    config = {"precision": "fp16-weights", "accumulate": 2}
    incident = broken(tmp_path, [noise(0, 6, 4), overflowing()], workload, config=config)
    autopsy = replay(incident, job())  # the job is described in float32
    assert autopsy.reproduced == "bitwise"
    assert autopsy.cure is not None


@pytest.mark.on_standin
def test_plan_clipping_and_wrappers_are_part_of_the_step(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("kind: plan\nschema_version: 1\nislands:\n- module: '2'\n")
    config = {"plan": str(plan), "clip": {"max_norm": 1.0, "norm_type": 1.0}}
    incident = broken(tmp_path, [overflowing()], config=config)
    assert replay(incident, job()).reproduced == "bitwise"

    state = {f"model.module.{k}": v for k, v in incident.tensors("model.").items()}
    norms = {f"module.{k}": v for k, v in incident.record.grad_norms.items()}
    record = incident.record.model_copy(update={"grad_norms": norms})
    others = {k: v for k, v in incident.tensors().items() if not k.startswith("model.")}
    wrapped = open_incident(write_incident(tmp_path / "ddp", record, {**others, **state}))
    assert replay(wrapped, job()).reproduced == "bitwise"

    plan.unlink()
    with pytest.raises(UsageError, match=r"plan[.]yaml"):
        replay(incident, job())


def test_a_loop_with_its_own_forward_pass_can_be_repeated_if_it_names_the_batch(
    tmp_path: Path,
) -> None:
    for name, batch in (("with", overflowing()), ("without", None)):
        workload = job()
        guard = Guard(workload.model, workload.optimizer, run_dir=tmp_path / name)
        with guard.autocast():
            loss = mean(workload.model, overflowing())
        guard.backward(loss, batch=batch)
        guard.update()
    incident = open_incident(tmp_path / "with" / "incidents" / "000000-r0")
    autopsy = replay(incident, job())
    assert autopsy.reproduced == "same fault"  # all of its numbers are NaN
    assert any("random numbers" in text for text in autopsy.differences)
    with pytest.raises(UsageError, match="contains no batch"):
        replay(tmp_path / "without" / "incidents" / "000000-r0", job())


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    nothing: dict[str, Tensor] = {}
    incident = broken(tmp_path, [overflowing()])
    with pytest.raises(UsageError, match=r"does not match the incident: .*size mismatch"):
        replay(incident, job(nn.Sequential(nn.Linear(4, 5), nn.Identity(), nn.Linear(4, 1))))
    with pytest.raises(UsageError, match=r"cannot be run: KeyError: 'x'.*test_autopsy.py"):
        replay(incident, job(loss=lambda model, batch: mean(model, nothing["x"])))
    damaged = MicroBatchRecord(batch=incident.record.micro_batches[0].batch, rng="nonsense")
    with pytest.raises(RecordError, match="random state"):
        replay(edited(incident, tmp_path, micro_batches=(damaged,)), job())


def test_without_weights_those_of_the_entry_are_used_and_it_says_so(tmp_path: Path) -> None:
    incident = broken(tmp_path, [overflowing()], config={"incidents": {"weights": False}})
    autopsy = replay(incident, job())
    assert any("contains none" in text for text in autopsy.differences)
    assert autopsy.cure is not None


def test_a_cure_that_stops_learning_says_so(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return -torch.log(torch.relu(model(batch).half() - 1000)).mean()

    autopsy = replay(broken(tmp_path, [noise(0, 6, 4)], job(loss=loss)), job(loss=loss))
    assert "nothing is learned" in autopsy.cure.sentence


def test_other_ranks_are_named_when_this_one_is_fine(tmp_path: Path) -> None:
    incident = broken(tmp_path, [overflowing()])
    autopsy = replay(edited(incident, tmp_path, world_size=8), job())
    assert any("8 took part" in text for text in autopsy.differences)


@pytest.mark.parametrize("fused", [False, True], ids=["at once", "late"])
def test_an_incident_of_an_accelerator_is_repeated_without_one(
    accelerator: Any, tmp_path: Path, fused: bool
) -> None:
    model = place(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    there = Workload(model, mean, [], optimizer)
    healthy = place(noise(0, 6, 4))
    incident = broken(tmp_path, [place(overflowing()), *[healthy] * (2 if fused else 0)], there)
    assert incident.record.device == "standin"
    accelerator.set_available(False)
    autopsy = replay(open_incident(incident.folder), job())
    # Decided late, the weights that it holds are those of a later step.
    assert autopsy.reproduced == ("same fault" if fused else "bitwise")
    assert "CUDA's autocast rules, emulated" in autopsy.how
    assert (autopsy.culprit.op, autopsy.culprit.module) == ("mul", "1")
