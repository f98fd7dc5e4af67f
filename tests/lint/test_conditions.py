"""Tests of a training loop: which branch runs in float16."""

from __future__ import annotations

import ast

from halfguard.lint.conditions import AMP_IS_ON, condition_of
from tests.support.cases import each


@each(
    ("test", "on"),
    [
        ("use_amp", True),
        ("not use_amp", False),
        ("scaler is None", False),
        ("args.fp16", True),
        ("cfg.precision == 'fp16'", True),
        ("cfg.precision == 'fp32'", False),
        ("cfg.precision == '32-true'", False),
        ("cfg.precision != 'fp32'", True),
        ("cfg.precision != 'fp16'", False),
        ("scaler is not None", True),
        ("precision == 32", False),
        ("mixed_precision == 'no'", False),
    ],
)
def test_the_branch_of_float16(test: str, on: bool) -> None:
    assert condition_of(ast.parse(test, mode="eval").body) == (AMP_IS_ON, on)
