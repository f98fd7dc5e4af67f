"""``halfguard doctor`` from the command line: one screen, JSON, exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from halfguard.records.machine import MachineReport
from tests.cli.command_result import Run, run_in
from tests.support.docs import ROOT

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without CUDA")


@pytest.fixture
def doctor(seed: object) -> Run:
    """``halfguard doctor`` in this process; ``seed`` puts back the generator that rich draws from."""
    return partial(run_in, ROOT, "doctor")


@pytest.mark.slow
@on_a_cpu
def test_a_machine_without_a_gpu_gets_a_useful_screen(doctor: Run) -> None:
    done = doctor()
    assert done.exit_code == 0
    # A line every ten seconds, on a machine that is busy.
    assert all(line.startswith("Measuring: ") for line in done.err.splitlines())
    lines = done.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert "no accelerator" in lines[1]
    rows = {line.split()[0]: line for line in lines if line.split()[:1]}
    for precision in ("fp32", "fp16-mixed", "bf16-mixed"):
        assert "6 operations correct" in rows[precision]
        assert "x " in rows[precision]
    assert any(line.startswith("Choose ") for line in lines)
    assert "HD113" in done.out
    assert 'torch.amp.GradScaler("cpu")' in done.words


@pytest.mark.slow
@on_a_cpu
def test_what_is_asked_for_decides_what_counts(doctor: Run) -> None:
    broken = doctor("--precision", "fp16-mixed", "--batch-size", "1")
    assert broken.exit_code == 1
    assert "HD113" in broken.out
    mended = doctor("--precision", "fp32", "--batch-size", "1")
    assert (mended.exit_code, "No findings." in mended.out) == (0, True)


@pytest.mark.slow
def test_json_has_everything(doctor: Run) -> None:
    body = json.loads(doctor("--json", "--batch-size", "3").out)
    assert list(body) == ["kind", "schema_version", "machine", "diagnosis", "cost"]
    report = MachineReport.from_json(json.dumps(body["machine"]))
    assert len(report.parity) == 18
    assert all(row.passed for row in report.parity)
    assert any(row.size.startswith("[3, 64, 56, 56]") for row in report.parity)
    assert report.machine is not None
    assert all(ability.speed for ability in report.abilities)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("TITAN RTX", "fp16-mixed"),
        ("NVIDIA A100-SXM4-80GB", "bf16-mixed"),
        ("GTX 1660", "fp32"),
    ],
)
def test_a_card_named_by_hand(doctor: Run, name: str, choice: str) -> None:
    done = doctor("--gpu", name)
    assert f"Choose {choice}." in done.out
    assert "source: " in done.out
    assert len(done.out.splitlines()) <= 24
    assert done.exit_code == (1 if name == "GTX 1660" else 0)


def test_the_vendor_is_named_once(doctor: Run) -> None:
    assert doctor("--gpu", "M2 Max").out.startswith("M2 Max: Apple M1 and M2\n")
    assert doctor("--gpu", "T4").out.startswith("T4: NVIDIA Turing\n")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("T4", "bf16-mixed"), "HG406"),
        (("GTX 1650 SUPER", "fp16-mixed"), "HD003"),
        (("GTX 1080 Ti", "fp16-mixed"), "HD006"),
    ],
)
def test_a_precision_that_a_card_does_badly(doctor: Run, args: tuple[str, str], code: str) -> None:
    broken = doctor("--gpu", args[0], "--precision", args[1])
    assert (broken.exit_code, code in broken.out, "Fix: Use " in broken.out) == (1, True, True)
    choice = json.loads(doctor("--gpu", args[0], "--json").out)["machine"]["choice"]["precision"]
    mended = doctor("--gpu", args[0], "--precision", choice)
    assert (mended.exit_code, "No findings." in mended.out) == (0, True)


@pytest.mark.slow
def test_a_model_in_half_is_examined_in_half(doctor: Run, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "import torch, halfguard as hg\n"
        "def job(seed):\n"
        "    model = torch.nn.Linear(8, 8).half()\n"
        "    loss = lambda model, batch: model(batch).float().square().mean()\n"
        "    batches = [torch.ones(4, 8).half()]\n"
        "    return hg.Workload(model, loss, batches, torch.optim.SGD(model.parameters(), lr=0.1))\n"
    )
    done = doctor(f"{tmp_path / 'half.py'}:job")
    assert "requested fp16-mixed" in done.words  # not BF16, which a CPU would choose
    assert "HG401 error: 2 trainable parameters are float16" in done.words


@pytest.mark.slow
def test_a_workload_and_its_cost(doctor: Run) -> None:
    done = doctor("examples/overflowing.py:t5", "--cost", "--batch-size", "1")
    assert "requested " in done.out
    assert "peak memory" in done.out
    assert "is the fastest precision on this machine" in done.out
    assert "HD113" not in done.out  # the job's own scaler was looked at
    # That a precision does not pay is no finding about a job that did not ask for it.
    assert (done.exit_code, "warning:" in done.out) == (0, False)


@pytest.mark.slow
def test_a_budget_that_does_not_hold_is_answered_with_what_to_change(doctor: Run) -> None:
    args = [
        "examples/overflowing.py:t5",
        "--precision",
        "bf16-mixed",
        "--cost",
        "--batch-size",
        "1",
    ]
    tight = doctor(*args, "--budget", "1kB")
    assert tight.exit_code == 1
    assert "HD205 error: A step does not fit into 1 kB" in tight.words
    assert "Halve the micro-batch size and accumulate twice as many" in tight.words
    body = json.loads(doctor(*args, "--budget", "2GB", "--json").out)["cost"]
    assert body["budget"] == 2_000_000_000
    assert [one["precision"] for one in body["costs"]] == ["fp32", "bf16-mixed"]
    (note,) = [found for found in body["findings"] if found["code"] == "HD205"]
    assert note["severity"] == "note"


@pytest.mark.slow
def test_a_workload_in_json(doctor: Run) -> None:
    args = ("--precision", "fp16-mixed", "--batch-size", "1", "--json")
    body = json.loads(doctor("examples/overflowing.py:t5", *args).out)
    assert body["diagnosis"]["effective"]["got"] == "fp16-mixed"
    assert body["cost"] is None
