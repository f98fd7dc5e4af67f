"""The rule for skipped steps: calibration is no event, a collapse is."""

from __future__ import annotations

from halfguard.investigation.sensing import SkipRule


def test_calibration_is_no_event() -> None:
    rule = SkipRule()
    assert not any(rule.overflow(2.0 ** (24 - n)) for n in range(8))
    rule.good()
    assert not rule.at_end(crashed=False)
    assert (rule.skips, rule.streak, rule.applied) == (8, 0, 1)


def test_a_scale_that_falls_below_one_is_an_event() -> None:
    rule = SkipRule()
    assert not rule.overflow(1.0)
    assert "fell to 0.5" in rule.overflow(0.5)


def test_a_scale_that_begins_below_one_may_calibrate() -> None:
    rule = SkipRule()
    assert not rule.overflow(2.0**-10)
    assert not rule.overflow(2.0**-11)
    rule.good()
    assert not rule.at_end(crashed=False)
    assert "fell" in rule.overflow(2.0**-11)


def test_twenty_in_a_row_are_an_event() -> None:
    rule = SkipRule()
    assert not any(rule.overflow(2.0**40) for _ in range(30))  # it began there
    rule.good()
    reasons = [rule.overflow(2.0**40) for _ in range(20)]
    assert reasons[:19] == [""] * 19
    assert "20 steps in a row were skipped" in reasons[19]
    assert "21 backward passes in a row" in rule.overflow(2.0**40, each_steps=False)


def test_the_end_of_a_script_in_a_streak() -> None:
    rule = SkipRule()
    for _ in range(3):
        rule.overflow(1024.0)
    assert not rule.at_end(crashed=False)  # no step was applied before: still calibrating
    assert rule.at_end(crashed=True)
    rule.good()
    for _ in range(3):
        rule.overflow(1024.0)
    assert "the last 3 steps" in rule.at_end(crashed=False)
