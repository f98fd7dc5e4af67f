"""The page of a run, from rows: resumed runs, curves, and links to incidents."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfguard.journal import StepCounter
from halfguard.records import (
    Action,
    Cause,
    HealthRow,
    HealthWarning,
    HealthyStepsRow,
    JournalRow,
    NoteRow,
    RunInfo,
    StepRow,
    Summary,
)
from halfguard.records.step import LossCurve
from halfguard.report.curves import COLUMNS, gather_columns
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.run import EVERY_STEP, loss_columns, run_page
from halfguard.report.timeline import RunReport, build_timeline
from tests.report.test_page import EVIL, Structure


def window(first: int, last: int, loss: float = 1.0, scale: float = 1024.0) -> HealthyStepsRow:
    return HealthyStepsRow(
        first_step=first, last_step=last, loss_mean=loss, loss_max=2 * loss,
        grad_norm_min=0.1, grad_norm_max=0.5, scale=scale,
    )  # fmt: skip


def unusual(
    step: int,
    action: Action = Action.SKIP,
    cause: Cause | None = Cause.FORWARD_OVERFLOW,
    **more: object,
) -> StepRow:
    values = {"loss": math.nan, "grad_norm": math.inf, "scale": 512.0, "culprits": ("up.weight",)}
    return StepRow(step=step, action=action, cause=cause, **(values | more))  # type: ignore[arg-type]


ROWS: list[JournalRow] = [
    window(0, 99),
    unusual(100),
    window(101, 199, loss=0.5, scale=512.0),
    Summary(epoch=0, steps=200, applied=199, skipped={Cause.FORWARD_OVERFLOW: 1}),
    unusual(200, Action.RETRY, loss=0.4, grad_norm=0.2),
    window(201, 299, loss=0.3, scale=512.0),
]
INFO = RunInfo(
    started="2026-01-01T00:00:00+00:00",
    config={"precision": "fp16-mixed"},
    environment={"torch": "2.13"},
)


def make_report(
    rows: Sequence[JournalRow] = ROWS, name: str = "runs/a", **more: object
) -> RunReport:
    return RunReport.of(name, rows, INFO, ["000100-r0"], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_a_page_says_what_happened(write: object) -> None:
    page = write(run_page(make_report()))  # type: ignore[operator]
    text = re.sub(r"<[^>]*>|[`*\\]", "", page.partition("</style>")[2] or page)
    for part in ("Run runs/a applied 299 of 300 steps", "299 of 300 steps were applied (99.67%)",
                 "1 skipped, 1 repeated in FP32",
                 "lowered once", "not closed", "once forward overflow, skip", "up.weight",
                 "halfguard replay runs/a/incidents/000100-r0", "fp16-mixed"):  # fmt: skip
        assert part in text, part


def test_three_curves_with_marks_and_a_link_to_the_incident() -> None:
    page = to_html(run_page(make_report(), "../runs/a"))
    figures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert [re.search(r"<title>(.*?) over steps<", figure)[1] for figure in figures] == [  # type: ignore[index]
        "loss", "gradient norm", "loss scale"
    ]  # fmt: skip
    assert all(">skipped</text>" in f and ">repeated in FP32</text>" in f for f in figures)
    assert all("step 100: skip, forward overflow" in figure for figure in figures)
    assert 'href="./../runs/a/incidents/000100-r0"' in page


def curve(first: int, losses: list[float], size: int = 1, high: float = 9.0) -> HealthyStepsRow:
    low, highs = ((), ()) if size == 1 else ((0.1,) * len(losses), (high,) * len(losses))
    made = LossCurve(steps_per_point=size, mean=tuple(losses), low=low, high=highs)
    row = window(first, first + size * len(losses) - 1)
    return row.model_copy(update={"losses": made})


def test_a_short_run_is_drawn_step_by_step() -> None:
    losses = [3.0 - step / 1000 for step in range(1999)]
    report = make_report(
        [curve(0, losses[:1000]), curve(1000, losses[1000:]), unusual(1999, loss=0.5)]
    )
    columns = loss_columns(report.timeline.parts)
    assert [(column.step, column.mean) for column in columns] == [*enumerate(losses), (1999, 0.5)]
    assert "Loss: every step." in to_html(run_page(report))


def test_a_long_run_is_drawn_with_the_extremes_of_its_buckets() -> None:
    rows = [curve(start, [1.0] * 20, size=50) for start in range(0, 100_000, 1000)]
    rows[50] = curve(50_000, [1.0] * 20, size=50, high=77.0)
    columns = loss_columns(build_timeline(rows).parts)
    assert len(columns) <= COLUMNS < EVERY_STEP
    assert (min(c.low for c in columns), max(c.high for c in columns)) == (0.1, 77.0)
    assert all(column.mean == 1.0 for column in columns)
    assert "the band spans the lowest" in to_html(run_page(make_report(rows)))


def test_a_resumed_run_draws_each_step_once() -> None:
    rows = [curve(0, [1.0] * 100), curve(40, [2.0] * 20), curve(70, [3.0] * 10)]
    columns = loss_columns(build_timeline(rows).parts)
    expected = [1.0] * 40 + [2.0] * 20 + [1.0] * 10 + [3.0] * 10 + [1.0] * 20
    assert [column.mean for column in columns] == expected
    assert [column.step for column in columns] == list(range(100))


def test_a_journal_without_losses_says_so() -> None:
    assert "the journal contains no other values" in to_html(run_page(make_report([window(0, 9)])))


def test_a_healthy_run_is_shown_as_good() -> None:
    page = to_html(run_page(make_report([window(0, 999), Summary(steps=1000, applied=1000)])))
    assert '<p class="good">1000 of 1000' in page
    assert "not closed" not in page


def test_a_halted_run_says_so_first() -> None:
    stop = unusual(300, Action.HALT, evidence="The loss was NaN.")
    page = to_html(run_page(make_report([*ROWS, stop])))
    assert "The guard stopped this run. The loss was NaN." in page


def test_only_a_scale_that_finds_its_level_is_harmless() -> None:
    def is_red(**more: object) -> bool:
        row = unusual(1, Action.SKIP, Cause.GRADIENT_OVERFLOW, **more)
        return "bad" in to_html(run_page(RunReport.of("a", [row]))).split("<h2>Unusual steps")[1]

    assert not is_red(routine=True)
    assert is_red(evidence="Gradients held NaN at every loss scale.")


def test_a_warning_is_shown_once_and_covers_no_step() -> None:
    text = "The loss scale fell from 65536 to 64."
    row = HealthRow(step=150, warning=HealthWarning.LOW_SCALE, text=text)
    report = make_report([*ROWS, row, row])
    assert to_html(run_page(report)).count(f"Warning at step 150: {text}") == 1
    assert report.timeline.parts == make_report().timeline.parts
    assert report.timeline.summary().warnings == (HealthWarning.LOW_SCALE,)
    [told] = json.loads(report.to_json())["warnings"]
    assert told["text"] == text


def test_notes_of_the_script_are_shown_and_cover_no_step() -> None:
    notes = [NoteRow(step=step, text=f"{step} batches without a teacher") for step in range(100)]
    report = make_report([*ROWS, *notes])
    page = to_markdown(run_page(report))
    assert "| 29 | 29 batches without a teacher |" in page
    assert "40 more are in steps.jsonl" in page
    assert "| 30 | 30 batches" not in page
    assert len(json.loads(report.to_json())["notes"]) == 100
    assert report.timeline.parts == make_report().timeline.parts


def test_nothing_yet() -> None:
    assert "The journal contains no steps yet" in to_markdown(run_page(RunReport.of("a", [])))
    assert json.loads(RunReport.of("a", []).to_json())["summary"]["steps"] == 0


def test_after_a_resumed_run_the_last_row_counts() -> None:
    resumed = [*ROWS, window(200, 249, loss=0.35), unusual(250), window(251, 320, loss=0.2)]
    timeline = build_timeline(resumed)
    assert [(type(p).__name__, getattr(p, "step", None) or p.first_step) for p in timeline.parts] == [
        ("HealthyStepsRow", 0), ("StepRow", 100), ("HealthyStepsRow", 101),
        ("HealthyStepsRow", 200), ("StepRow", 250), ("HealthyStepsRow", 251),
    ]  # fmt: skip
    assert timeline.resumed == 1
    assert timeline.summary().steps == 321


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.booleans()), max_size=25))
def test_every_step_counts_once_and_the_last_row_that_covers_it_decides(
    written: list[tuple[int, int, bool]],
) -> None:
    rows: list[JournalRow] = []
    holds: dict[int, str] = {}
    for number, (first, length, single) in enumerate(written):
        loss = float(number)
        if single:
            rows.append(unusual(first, loss=loss))
            holds[first] = f"step {loss}"
        else:
            rows.append(window(first, first + length, loss=loss))
            holds |= dict.fromkeys(range(first, first + length + 1), f"window {loss}")
    found: dict[int, str] = {}
    for part in build_timeline(rows).parts:
        if isinstance(part, StepRow):
            covered, name = range(part.step, part.step + 1), f"step {part.loss}"
        else:
            covered, name = range(part.first_step, part.last_step + 1), f"window {part.loss_mean}"
        assert not found.keys() & set(covered)
        found |= dict.fromkeys(covered, name)
    assert found == holds
    assert list(found) == sorted(found)


actions = st.sampled_from(
    [(Action.APPLY, None), (Action.RETRY, Cause.FORWARD_OVERFLOW), (Action.SKIP, Cause.BAD_BATCH),
     (Action.ROLL_BACK, Cause.LOSS_SPIKE), (Action.HALT, Cause.GRADIENT_OVERFLOW)]
)  # fmt: skip


@given(st.lists(st.tuples(actions, st.sampled_from([256.0, 512.0, 1024.0])), max_size=30))
def test_the_counts_equal_those_of_the_step_counter(
    steps: list[tuple[tuple[Action, Cause | None], float]],
) -> None:
    counter, rows = StepCounter(), []
    for step, ((action, cause), scale) in enumerate(steps):
        counter.add(action, cause, 0.5, scale)
        healthy = action is Action.APPLY
        rows.append(
            HealthyStepsRow(first_step=step, last_step=step, loss_mean=1.0, loss_max=1.0,
                      grad_norm_min=0.5, grad_norm_max=0.5, scale=scale)
            if healthy else unusual(step, action, cause, grad_norm=0.5, scale=scale)
        )  # fmt: skip
    assert build_timeline(rows).summary() == counter.summary()


@pytest.mark.slow
def test_thousands_of_unusual_steps_stay_readable() -> None:
    rows = [unusual(step) for step in range(20_000)]
    page = to_html(run_page(make_report(rows)))
    assert len(page.encode()) < 500_000
    assert "19940 more are in steps.jsonl" in page


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.floats(allow_nan=True, allow_infinity=True)), max_size=80
    )
)
@example([(0, sys.float_info.max)] * 5)
@example([(0, -sys.float_info.max), (0, sys.float_info.max), (0, sys.float_info.max)])
def test_thinning_keeps_the_extremes_and_every_bad_number(points: list[tuple[int, float]]) -> None:
    ordered = sorted(points, key=lambda pair: pair[0])
    halves = [ordered[::2], ordered[1::2]]
    runs = [([step for step, _ in half], [value for _, value in half]) for half in halves]
    found = gather_columns(runs, 10)
    assert len(found) <= 10 <= COLUMNS
    good = [value for _, value in points if math.isfinite(value)]
    kept = [c for c in found if not math.isnan(c.mean)]
    assert all(
        math.nextafter(c.low, -math.inf) <= c.mean <= math.nextafter(c.high, math.inf) for c in kept
    )
    assert sum(c.nonfinite for c in found) == len(points) - len(good)
    assert min((c.low for c in kept), default=None) == min(good, default=None)
    assert max((c.high for c in kept), default=None) == max(good, default=None)


def test_names_with_markup_or_a_scheme_in_them_are_only_text() -> None:
    rows = [*ROWS, unusual(300, culprits=(EVIL,))]
    evil = RunReport.of(EVIL, rows, INFO, ["000100-r0"], [EVIL])
    page = to_html(run_page(evil, "javascript:alert(1)//"))
    assert "<script" not in page
    assert "\x1b" not in page
    assert 'href="./javascript%3Aalert' in page
    plain = RunReport.of("a", [*ROWS, unusual(300, culprits=("b",))], INFO, ["000100-r0"], ["c"])
    assert Structure(page).names == Structure(to_html(run_page(plain))).names


def test_repeats_are_in_the_headline_and_not_green() -> None:
    rows = [unusual(step, Action.RETRY, Cause.GRADIENT_OVERFLOW) for step in range(4)]
    page = run_page(make_report(rows))
    assert page.title == "Run runs/a applied 4 of 4 steps, 4 of them repeated in FP32"
    text = to_markdown(page)
    assert "4 of 4 steps were applied (100.00%), 4 of them (100.00% of all steps)" in text
    assert 'class="good"' not in to_html(page)


def test_a_corrupt_batch_is_shown_by_its_description() -> None:
    row = unusual(1, Action.SKIP, Cause.BAD_BATCH, batches=("files 9-16, float32 8x4",))
    assert "files 9-16" in to_markdown(run_page(make_report([row])))


def test_a_replay_without_an_entry_asks_for_one() -> None:
    with_entry = INFO.model_copy(update={"entry": "train.py:job"})
    for info, shown in ((INFO, True), (with_entry, False)):
        page = to_markdown(run_page(RunReport.of("runs/a", ROWS, info, ["000100-r0"])))
        assert ("--entry FILE.py:FUNCTION" in page) is shown
