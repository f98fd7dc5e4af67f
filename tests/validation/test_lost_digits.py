"""The report on a candidate that failed names the lines that lose its digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.validation.judgement.verdict import judge
from halfguard.validation.lost_digits import find_lost_digits, read_lost_digits
from halfguard.validation.spec import Spec
from halfguard.validation.study_files import write_reports
from tests.validation.studies import losing, study

JOB = """
import torch
import halfguard as hg


def loss(model, x):
    x = {cast}
    return model(x - x.mean(-1, keepdim=True)).float().square().mean()


def job(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 1)
    batches = [30000 + 30 * torch.randn(16, 8)]
    return hg.Workload(model, loss, batches, torch.optim.SGD(model.parameters(), lr=1e-5))
"""


def report(folder: Path, cast: str, loss: float) -> str:
    """Write the reports of a study whose candidate loses quality; return them."""
    (folder / "job.py").write_text(JOB.format(cast=cast))
    spec = Spec.load(
        {
            "name": "ocr",
            "entry": f"{folder}/job.py:job",
            "candidates": ["fp16-mixed"],
            "seeds": 5,
            "steps": 2,
            "metric": {"name": "hmean", "higher_is_better": True},
        }
    )
    made = study({"fp16-mixed": losing(loss)})
    verdict = judge(made)
    find_lost_digits(spec, verdict, folder)
    write_reports(folder, made, verdict)
    return (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("cast", "told"),
    [
        ("x.half().float()", "job.py:7`: `x = x.half().float()`. This line costs 100%"),
        ("x", "No line costs more"),
    ],
    ids=["lossy", "healthy"],
)
def test_a_failed_candidate_has_its_lines(tmp_path: Path, cast: str, told: str) -> None:
    assert told in report(tmp_path, cast, 0.2)


def test_a_candidate_that_passes_is_not_looked_at(tmp_path: Path) -> None:
    assert "lose digits" not in report(tmp_path, "x.half()", 0.0)
    assert read_lost_digits(tmp_path, judge(study({"fp16-mixed": losing(0.0)}))) == {}
