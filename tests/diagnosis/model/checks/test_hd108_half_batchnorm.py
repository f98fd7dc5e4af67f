from __future__ import annotations

import torch

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, net


def test_half_running_statistics_overflow() -> None:
    model = net(batchnorm=True).half()
    model[1](torch.linspace(-60000, 60000, 32).reshape(4, 8).half())
    assert model[1].running_var.isinf().any()

    model = net(batchnorm=True).half().requires_grad_(False)
    diagnosis = hg.doctor(model)
    assert codes(diagnosis) == ["HD108"]
    finding = found(diagnosis, "HD108")
    assert finding.subject == "1"
    cured(finding, model=model)
    assert hg.doctor(model, batch=batch().half()).ok
    model[1](torch.linspace(-60000, 60000, 32).reshape(4, 8).half())
    assert model[1].running_var.isfinite().all()


def test_float32_and_untracked_statistics_are_fine() -> None:
    untracked = torch.nn.BatchNorm1d(8, track_running_stats=False).half().requires_grad_(False)
    assert hg.doctor(net(batchnorm=True)).ok
    assert hg.doctor(untracked).ok


def test_statistics_that_do_not_move_are_fine() -> None:
    model = net(batchnorm=True).half().requires_grad_(False)
    model[1].eval()
    before = model[1].running_var.clone()
    model(batch().half())
    assert torch.equal(model[1].running_var, before)
    assert hg.doctor(model).ok


def test_a_model_that_is_still_in_eval_will_move_them() -> None:
    model = net(batchnorm=True).half().requires_grad_(False).eval()
    assert codes(hg.doctor(model)) == ["HD108"]
    assert codes(hg.doctor(model, batch=batch().half())) == ["HD108"]
    assert not model.training
    cured(found(hg.doctor(model), "HD108"), model=model)
    assert hg.doctor(model).ok
