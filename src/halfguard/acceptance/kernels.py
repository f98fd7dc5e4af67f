"""Check operations at the sizes of real layers, in every format, against float64: the doctor's self-test."""

from __future__ import annotations

from halfguard.acceptance.setting import Cases, Setting
from halfguard.diagnosis.parity.selftest import run_selftest
from halfguard.records.acceptance import AcceptanceCase

NAME = "kernels"
CLAIM = (
    "Operations at the sizes of real layers are within rounding error of float64, in every format."
)


def run(setting: Setting) -> Cases:
    """Yield a case for each operation and format."""
    for row in run_selftest(setting.device, setting.size.kernel_batch):
        yield AcceptanceCase(
            name=f"{row.operation}, {row.precision}",
            status="passed" if row.passed else "failed",
            detail=row.detail,
            figures={"error over bound": row.error},
        )
