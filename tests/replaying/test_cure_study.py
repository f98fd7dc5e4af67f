"""A sample of the study of cures, a fault in a loss and one in a layer: ``scripts/soak cures`` runs all."""

from __future__ import annotations

import pytest
from benchmarks.models.planted import FAULTS, is_held_out

from tests.replaying.cure_study import chosen, study

pytestmark = pytest.mark.usefixtures("seed")
SAMPLE = ("unet_tversky_empty", "boxes_iou", "pointer_recall")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_the_recommended_cure_brings_the_loss_back_to_that_of_fp32(name: str) -> None:
    (fault,) = chosen([name])
    result = study(fault)
    assert result.cured, result
    assert not result.untreated <= result.limit
    assert result.named
    assert result.applied >= 190


def test_the_parts_of_the_study_cover_it() -> None:
    assert len(chosen(["tuned"])) + len(chosen(["held-out"])) == len(chosen([])) == len(FAULTS)
    assert not any(is_held_out(name) for name in SAMPLE)
