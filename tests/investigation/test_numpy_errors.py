"""NaN that NumPy makes has the line of its division, even if it is silent; a bad learning rate, too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from halfguard.investigation.numpy_errors import BadRate, NumpyErrors


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[NumpyErrors]:
    for name in ("errstate", "seterr"):
        monkeypatch.setattr(np, name, getattr(np, name))
    state, call, seterr = np.geterr(), np.geterrcall(), np.seterr
    watch = NumpyErrors()
    watch.watch()
    yield watch
    np.seterrcall(call)
    seterr(**state)


def test_a_silent_division_is_noted(errors: NumpyErrors) -> None:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(np.zeros(2) / np.zeros(2)).all()
    ((place, what),) = errors.places.items()
    assert (place[0], what) == (__file__, "invalid value")


def test_a_warning_stays_a_warning_and_an_exception_an_exception(errors: NumpyErrors) -> None:
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        np.log(np.zeros(1))
    assert list(errors.places.values()) == ["divide by zero"]
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        np.zeros(1) / np.zeros(1)


def test_a_learning_rate_that_is_nan_has_the_line_of_its_function() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0 if step < 1 else torch.nan
    )
    rate, good = BadRate(), BadRate()
    good.on_stepping(optimizer)
    assert good.reason is None
    optimizer.step()
    schedule.step()
    rate.on_scheduled(schedule)
    rate.on_stepping(optimizer)
    assert rate.reason is not None
    assert rate.reason.text.startswith(f"the learning rate of SGD is nan, by {__file__}:")
