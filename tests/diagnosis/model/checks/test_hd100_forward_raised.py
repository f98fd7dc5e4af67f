from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("seed")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.lstm(x)[0])
        return output


def test_an_operation_without_a_half_kernel() -> None:
    model, x = Recurrent(), batch()[None]
    with torch.autocast(device_type(), torch.float16):
        with pytest.raises(RuntimeError):
            model(x)
        diagnosis = hg.doctor(model, batch=x)
        assert codes(diagnosis) == ["HD100"]
        assert found(diagnosis, "HD100").subject == "lstm"
        cured(found(diagnosis, "HD100"), model=model)
        assert hg.doctor(model, batch=x).ok


def test_a_half_norm_that_is_given_float32_under_autocast() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)).half().requires_grad_(False)
    with torch.autocast(device_type(), torch.float16):
        with pytest.raises(RuntimeError, match="mixed dtype"):
            model(batch())
        finding = found(hg.doctor(model, batch=batch()), "HD100")
        assert finding.subject == "0"
        cured(finding, model=model)
        assert hg.doctor(model, batch=batch()).ok


def test_a_plain_mistake_is_told_with_its_line() -> None:
    diagnosis = hg.doctor(net(), batch=torch.zeros(4, 5))
    (finding,) = diagnosis.findings
    assert finding.code == "HD100"
    assert "mat1 and mat2 shapes" in finding.message
    assert diagnosis.effective is None
    assert not diagnosis.ok


def test_no_memory_is_answered_with_where_to_look() -> None:
    def full(model: nn.Module, x: Tensor) -> Tensor:
        return torch.empty(2**46)

    (finding,) = hg.doctor(net(), loss=full, batch=batch()).findings
    assert finding.code == "HD100"
    assert "--cost" in finding.cure


def test_an_error_of_the_users_own_code() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        raise KeyError("labels")

    (finding,) = hg.doctor(net(), loss=loss, batch=batch()).findings
    assert "'labels'" in finding.message
    assert 'raise KeyError("labels")' in finding.message
