"""Count the operations and host syncs that the guard adds to a step of each framework."""

from __future__ import annotations

import pytest
import torch
from benchmarks.timings.frameworks import FRAMEWORKS, Job, added
from torch import Tensor, nn

from tests.guard.test_cost import Many
from tests.support.pairs import parametrize_pairs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("seed"),
    pytest.mark.filterwarnings("ignore"),
]
AT_MOST = 30  # most of it for BatchNorm; 7 without


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).float().square().mean()
    return loss


def job(tensors: int, *, norm: bool, fused: bool) -> Job:
    torch.manual_seed(0)
    data = [torch.randn(8, 4) for _ in range(5)]  # the guard looks at steps 0, 1 and 3
    return Job(Many(tensors, norm=norm), squares, data, fused)


@parametrize_pairs(framework=FRAMEWORKS, norm=[False, True], fused=[False, True])
def test_a_step_adds_a_fixed_number_of_operations_and_at_most_one_host_sync(
    framework: str, norm: bool, fused: bool
) -> None:
    found = [added(framework, job(tensors, norm=norm, fused=fused)) for tensors in (20, 100)]
    print(f"{framework} norm={norm} fused={fused}: {found}")
    assert found[0] == found[1]  # however many parameters there are
    operations, host_syncs = found[0]
    assert operations <= AT_MOST
    # A scheduler must know at once whether the step was applied; stock waits only if it is not fused.
    assert host_syncs == (1 if fused else 0)
