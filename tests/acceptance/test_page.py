"""The page of a record: what failed and what was not run is as visible as what passed."""

from __future__ import annotations

from halfguard.acceptance import acceptance_page
from halfguard.records.acceptance import AcceptanceCase, AcceptanceCheck, AcceptanceRecord
from halfguard.report import to_html, to_markdown

BAD = AcceptanceCase(name="exp", status="failed", detail="its error is <3> times the bound")
CHECKS = (
    AcceptanceCheck(
        name="autocast",
        claim="Rules hold.",
        status="failed",
        reason="1 of 1 cases failed. exp: wrong",
        cases=(BAD,),
        seconds=1.0,
    ),
    AcceptanceCheck(
        name="lockstep", claim="Alike.", status="not run", reason="It needs 2 GPUs.", seconds=0.0
    ),
    AcceptanceCheck(
        name="memory",
        claim="Small.",
        status="passed",
        cases=(
            AcceptanceCase(
                name="AdamW",
                figures={"bare bytes": 1000, "guarded bytes": 1300, "allowed more": 2048},
            ),
        ),
        seconds=2.0,
    ),
)
RECORD = AcceptanceRecord(
    date="2026-01-01",
    device="cuda",
    device_name="Tesla <T4>",
    device_count=2,
    capability="7.5",
    memory=15.0,
    system="Linux x86_64",
    driver="NVIDIA 550.54",
    versions={"halfguard": "0.1.0", "torch": "2.13.0"},
    size="full",
    checks=CHECKS,
    seconds=3.0,
)


def test_failures_and_checks_that_were_not_run_come_first() -> None:
    text = to_markdown(acceptance_page(RECORD))
    assert text.index("1 of 3 checks failed: autocast.") < text.index("Checks")
    assert "Not run, so nothing is known: lockstep." in text
    assert "It needs 2 GPUs." in text
    assert "its error is" in text
    assert "+300 B" in text
    assert "2 x Tesla" in text


def test_html_escapes_what_a_record_from_somebody_else_says() -> None:
    html = to_html(acceptance_page(RECORD))
    assert "<T4>" not in html
    assert "Tesla &lt;T4&gt;" in html


def test_a_record_without_failures_says_how_many_passed() -> None:
    good = RECORD.model_copy(update={"checks": CHECKS[1:]})
    text = to_markdown(acceptance_page(good))
    assert "1 of 2 checks passed, 1 cases." in text
    assert "quick run" not in text
    quick = to_markdown(acceptance_page(good.model_copy(update={"size": "small"})))
    assert "quick run" in quick
