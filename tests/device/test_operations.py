"""Every operation of ``halfguard.ops``, and layers at real sizes, are within rounding error of float64."""

from __future__ import annotations

import pytest
import torch

from halfguard.diagnosis.parity.selftest import run_selftest
from tests.ops.test_distillation import test_agrees_with_float64 as test_distillation  # noqa: F401
from tests.ops.test_div import test_all_pairs_within_one_ulp as test_div  # noqa: F401
from tests.ops.test_everywhere import (  # noqa: F401
    test_autocast_changes_nothing,
    test_no_host_sync,
)
from tests.ops.test_losses import (  # noqa: F401
    test_binary_cross_entropy,
    test_binary_cross_entropy_of_every_probability,
    test_bpr,
    test_cross_entropy,
)
from tests.ops.test_masking import test_agrees_with_float64 as test_masking  # noqa: F401
from tests.ops.test_norms import (  # noqa: F401
    test_cosine_similarity,
    test_normalize,
    test_rms_norm,
)
from tests.ops.test_unary import (  # noqa: F401
    test_no_nan_is_made_on_any_bit_pattern,
    test_within_one_ulp_on_every_finite_value,
)

pytestmark = pytest.mark.usefixtures("device")


def test_layers_at_real_sizes(device: torch.device, pytestconfig: pytest.Config) -> None:
    batch = None if pytestconfig.getoption("full", False) else 1
    rows = list(run_selftest(device, batch))
    assert len(rows) == 18
    assert [f"{r.operation}, {r.precision}: {r.detail}" for r in rows if not r.passed] == []
