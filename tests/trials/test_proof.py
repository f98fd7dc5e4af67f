"""The error of gradients, measured part by part."""

from __future__ import annotations

import math

import torch

from halfguard.trials.proof import relative, squared_difference


def test_parts_of_large_gradients_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    right = [torch.randn(700, 800, generator=generator).t(), torch.randn(3, generator=generator)]
    tried = [grad + 1e-3 * torch.randn(grad.shape, generator=generator) for grad in right]
    kept = [grad.clone() for grad in (*right, *tried)]
    apart, size = squared_difference([*tried, None, torch.ones(2)], [*right, torch.ones(4), None])
    errors = [(t - r).double() for t, r in zip(tried, right, strict=True)]
    expected = sum(float(error.square().sum()) for error in errors) + 4
    assert math.isclose(apart, expected, rel_tol=1e-6)
    assert math.isclose(size, sum(float(r.double().square().sum()) for r in right) + 4)
    assert all(map(torch.equal, (*right, *tried), kept))  # nothing is written


def test_wide_gradients_stay_as_they_are() -> None:
    right = [torch.full((2, 2), 1.5, dtype=torch.float64)]
    assert relative(*squared_difference([torch.ones(2, 2)], right)) == 0.5 / 1.5
    assert torch.equal(right[0], torch.full((2, 2), 1.5, dtype=torch.float64))
