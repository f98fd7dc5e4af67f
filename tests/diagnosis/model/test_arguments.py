"""Whatever is handed over instead of a model or an optimizer is answered with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import halfguard as hg
from halfguard.errors import UsageError
from tests.diagnosis.model.checks.helper import net


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda m: {"all": sgd(m)}, r"a dict as an optimizer(?s:.)*for a dict, its values\(\)"),
        (lambda m: m.parameters(), r"a Parameter as an optimizer(?s:.)*AdamW\(model\.parameters"),
        (lambda m: [sgd(m), None], "a NoneType as an optimizer"),
        (lambda m: "adamw", "a str as an optimizer"),
        (lambda m: 3, "a int as an optimizer"),
    ],
)
def test_what_is_not_an_optimizer(wrong: Any, says: str) -> None:
    model = net()
    with pytest.raises(UsageError, match=says):
        hg.doctor(model, wrong(model))


@pytest.mark.parametrize("wrong", ["model", torch.nn.Linear, object()])
def test_what_is_not_a_model(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"as the model, which is not a torch\.nn\.Module"):
        hg.doctor(wrong)


def test_none_one_several_and_whatever_iterates_over_them() -> None:
    model = net()
    one, other = sgd(model[0]), sgd(model[2])
    for right in (None, (), sgd(model), [one, other], iter([one, other]), {"a": one}.values()):
        assert hg.doctor(model, right).ok
