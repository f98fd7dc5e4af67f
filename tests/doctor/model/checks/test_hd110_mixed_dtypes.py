from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from tests.doctor.model.checks.helper import cured, found, loss

pytestmark = pytest.mark.usefixtures("seed")

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4).half(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.query(x.to(self.query.weight.dtype)), self.key(x)
        return nn.functional.scaled_dot_product_attention(q, k, k)


MODELS = {
    "linear": lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half()),
    "conv1d": lambda: nn.Sequential(nn.Identity(), nn.Conv1d(3, 3, 1).half()),
    "scaled_dot_product_attention": Attention,
}


@pytest.mark.parametrize("operation", MODELS)
def test_two_dtypes_meet(operation: str) -> None:
    model = MODELS[operation]()
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        model(X)
    finding = found(hg.doctor(model, batch=X), "HD110")
    assert finding.message.startswith(f"{operation} in ")
    assert "float32 and float16" in finding.message or "float16 and float32" in finding.message
    assert finding.subject == (None if operation.startswith("scaled") else "1")

    again = "diagnosis = halfguard.doctor(model, batch=x)"
    space = cured(finding, again, model=model, x=X)
    assert "HD110" not in [one.code for one in space["diagnosis"].findings]
    cured(finding, "model(x)", model=model, x=X)


def test_the_line_of_the_users_code_is_named() -> None:
    model = nn.Linear(4, 1).half()
    finding = found(hg.doctor(model, loss=loss, batch=X), "HD110")
    assert "helper.py" in finding.message


def test_two_dtypes_that_torch_promotes_are_fine() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.half()

    assert hg.doctor(Sum(), batch=X).ok
