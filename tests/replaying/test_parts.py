"""Parts of a replay, each alone: bad samples, source patches, code that came with a folder."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halfguard.errors import HalfguardError, UsageError
from halfguard.repairs.stable_operation import make_patch
from halfguard.replaying.autopsy import replay
from halfguard.replaying.samples import MAX_BAD_SAMPLES, batch_size, find_bad_samples, select
from halfguard.report.autopsy import autopsy_page
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from tests.incident.hostile import hostile_folders
from tests.replaying.helper import Square, broken, job, overflowing
from tests.support.cases import each

pytestmark = pytest.mark.usefixtures("seed")


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 64).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_the_bad_samples_and_no_others_are_blamed(drawn: tuple[int, set[int]]) -> None:
    size, bad = drawn
    runs: list[tuple[int, ...]] = []

    def is_good(samples: tuple[int, ...]) -> bool:
        runs.append(samples)
        return bool(samples) and not bad.intersection(samples)

    found = find_bad_samples(size, is_good)
    assert found == (tuple(sorted(bad)) if 0 < len(bad) <= min(MAX_BAD_SAMPLES, size // 2) else ())
    assert len(runs) <= 2 * (MAX_BAD_SAMPLES + 2) * size.bit_length() + 2


def test_nobody_is_blamed_for_a_fault_of_the_whole() -> None:
    assert find_bad_samples(16, lambda samples: len(samples) < 16) == ()
    assert find_bad_samples(16, lambda samples: len(samples) < 9) == ()


def test_nobody_is_blamed_where_small_batches_break_by_themselves() -> None:
    """Variance over one sample: the search must not end at a batch of one."""
    assert find_bad_samples(8, lambda samples: len(samples) > 1 and 5 not in samples) == (5,)


class Scattered(nn.Module):
    """Writes what a module returns into a half tensor: torch raises if the module runs in FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square, self.last = nn.Linear(4, 4), Square(), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        rows = torch.zeros_like(h)
        rows[torch.arange(len(h))] = self.square(h)
        out: Tensor = self.last(rows)
        return out


def test_an_island_with_which_the_model_raises_is_no_cure_and_no_error(tmp_path: Path) -> None:
    incident = broken(tmp_path, [torch.randn(6, 4) * 1000], job(Scattered()))
    found = replay(incident, job(Scattered()))
    assert found.cure is not None
    assert found.cure.what != "island"


def test_samples_are_taken_from_any_structure() -> None:
    pair = namedtuple("pair", ["x", "y"])
    rows = torch.arange(6).reshape(3, 2)
    batch = {"a": [rows, pair(rows, 1)], "b": SimpleNamespace(x=rows, n=torch.tensor(3)), "c": "id"}
    assert batch_size(batch) == 3
    taken = select(batch, (0, 2))
    assert taken["a"][1].x.tolist() == [[0, 1], [4, 5]]
    assert taken["b"].x.tolist() == [[0, 1], [4, 5]]
    assert taken["b"].n.item() == 3
    assert batch_size((rows, rows[:2])) is None
    assert batch_size("text") is None


@each(
    ("before", "names", "after"),
    [
        ("y = torch.exp(x * 2).sum()", {"exp"}, "y = halfguard.ops.exp(x * 2).sum()"),
        ("y = (x + 1).log()", {"log"}, "y = halfguard.ops.log(x + 1)"),
        ("y = a / b.sum()  # why", {"div"}, "y = halfguard.ops.div(a, b.sum())  # why"),
        ("a.div_(b)", {"div"}, "a.copy_(halfguard.ops.div(a, b))"),
        ("y = x ** 0.5", {"sqrt"}, "y = halfguard.ops.sqrt(x)"),
        ("y = x.pow(-0.5)", {"rsqrt"}, "y = halfguard.ops.rsqrt(x)"),
        ("y = F.softmax(x, dim=1)", {"masked_softmax"},
         "y = halfguard.ops.masked_softmax(x, ~x.isneginf(), 1)"),
        ("y = F.cross_entropy(x, t, ignore_index=0)", {"cross_entropy"},
         "y = halfguard.ops.cross_entropy(x, t, ignore_index=0)"),
        ("y = torch.log(torch.exp(x))", {"exp", "log"},
         "y = halfguard.ops.log(halfguard.ops.exp(x))"),
        ("ü = torch.log(ä)", {"log"}, "ü = halfguard.ops.log(ä)"),
    ],
)  # fmt: skip
def test_a_line_is_rewritten(before: str, names: set[str], after: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"import torch\n{before}\n")
    lines = make_patch({(str(file), 2): names}).splitlines()
    assert f"+{after}" in lines
    assert "+import halfguard" in lines


@each(
    "line",
    [
        "y = x / 2",  # a constant: nothing to protect
        "y = F.softmax(f(x), dim=1)",  # f would be called twice
        "y = F.cross_entropy(x, t, reduction='sum')",
        "y = torch.exp(*x)",
        "y = self.layer(x)",
    ],
)
def test_what_is_not_certain_is_left_alone(line: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n")
    names = {"div", "masked_softmax", "cross_entropy", "exp"}
    assert make_patch({(str(file), 1): names}) == ""
    assert make_patch({(str(tmp_path / "missing.py"), 1): names}) == ""


@pytest.mark.slow
def test_hostile_folders_are_replayed_or_refused_and_nothing_else(tmp_path: Path) -> None:
    incident = broken(tmp_path / "run", [overflowing()])
    said = []
    for folder in hostile_folders(incident.folder, tmp_path / "hostile", 200, seed=3):
        try:
            page = autopsy_page(replay(folder, job()))
            said.append(to_html(page) + to_markdown(page))
        except HalfguardError as error:
            said.append(error.message)
    assert len(said) == 200


EVIL = "raise SystemExit('this must not run')\n"


@pytest.mark.parametrize("entry", ["runs/incidents/000000-r0/evil.py:f", "runs/evil.py:f",
                                   "runs.evil:f", "./runs/../runs/evil.py:f"])  # fmt: skip
def test_code_that_came_with_an_incident_is_not_run(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    incident = broken(tmp_path / "runs", [overflowing()], entry=entry)
    for folder in (tmp_path / "runs", incident.folder):
        (folder / "evil.py").write_text(EVIL)
    with pytest.raises(UsageError, match="Code that comes with an incident"):
        replay(incident)


def test_the_readers_own_code_is_found_by_the_recorded_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("from tests.replaying.helper import job as _job\n"
                                       "def job(seed):\n    return _job()\n")  # fmt: skip
    incident = broken(tmp_path / "runs" / "a", [overflowing()], entry="train.py:job")
    assert replay(incident.folder).cure is not None
    nameless = broken(tmp_path / "runs" / "b", [overflowing()])
    with pytest.raises(UsageError, match="does not contain the entry"):
        replay(nameless.folder)
    assert replay(nameless.folder, "train.py:job").cure is not None
