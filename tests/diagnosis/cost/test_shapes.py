"""Dimensions that tensor cores do not like, by name."""

from __future__ import annotations

from torch import nn

from halfguard.diagnosis.cost.shapes import find_unaligned_dimensions


class TestShapes:
    def test_missed_multiples_are_named_by_module_and_dimension(self) -> None:
        model = nn.ModuleDict(
            {
                "stem": nn.Conv2d(3, 30, 3),
                "deep": nn.Conv2d(30, 64, 3),
                "good": nn.Linear(64, 64),
                "head": nn.Linear(64, 1003),
                "each": nn.Conv2d(30, 30, 3, groups=30),
                "attention": nn.MultiheadAttention(64, 16),
            }
        )
        found = {
            (s.module, s.dimension): (s.size, s.better) for s in find_unaligned_dimensions(model)
        }
        assert found == {
            ("stem", "out_channels"): (30, 32),
            ("deep", "in_channels"): (30, 32),
            ("head", "out_features"): (1003, 1008),
            ("attention", "head_dim (embed_dim / num_heads)"): (4, 8),
        }

    def test_good_shapes_are_clean(self) -> None:
        assert (
            find_unaligned_dimensions(nn.Sequential(nn.Conv2d(3, 64, 7), nn.Linear(512, 1000)))
            == ()
        )
