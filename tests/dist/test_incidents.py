"""A bad step of one rank is saved by that rank and repeated in a single process."""

from __future__ import annotations

from pathlib import Path

import pytest

import halfguard as hg
from halfguard.incident import open_incident
from halfguard.journal import read_rows
from tests.dist import jobs
from tests.support.ranks import Group


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_the_rank_concerned_keeps_what_can_be_repeated(
    ranks: Group, engine: jobs.Engine, tmp_path: Path
) -> None:
    ranks(2).run(jobs.overflowing, engine, str(tmp_path))
    unusual = [row for row in read_rows(tmp_path / "steps.jsonl") if getattr(row, "cause", None)]
    assert [(row.step, row.ranks) for row in unusual] == [(2, (1,))], "one rank writes the journal"
    [folder] = (tmp_path / "incidents").iterdir()
    record = open_incident(folder).record
    assert (folder.name, record.rank, record.world_size) == ("000002-r1", 1, 2)
    assert record.step.ranks == (1,)
    autopsy = hg.replay(folder)
    # Gradients were averaged over ranks, so this rank has none of its own to compare.
    assert autopsy.reproduced == "same fault"
    if engine == "ddp":
        assert record.weights
    else:
        assert not record.weights  # no rank has all of them; the page names what was used instead
        assert "its weights are sharded" in " ".join(record.problems)
    assert autopsy.culprit.module == "layers.0"
