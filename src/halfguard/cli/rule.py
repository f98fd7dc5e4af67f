"""``halfguard rule``: print what a code means, of lint's rules and of the findings of doctor and probe."""

from __future__ import annotations

import textwrap
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from halfguard.lint.rule import Rule

app = typer.Typer(add_completion=False)
WIDTH = 110  # of a line of a page, as in lint's


@app.command()
def rule(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="Code or name: HG101, HD104, mask-constant."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a code of lint, doctor or probe means and what to do; without a code, list all."""
    if as_json:
        import json  # noqa: PLC0415

        typer.echo(json.dumps(_all_rows() if code is None else _row(code), indent=2))
    elif code is None:
        for row in _all_rows():
            note = " [*]" * (row.get("fix") == "safe") + " (preview)" * bool(row.get("preview"))
            typer.echo(f"{row['code']}  {row['name']:<30}{row['page'].partition(chr(10))[0]}{note}")
    else:
        typer.echo(page_of(code), nl=False)


def page_of(code: str) -> str:
    """Return the page of a code or name as Markdown, or one line about a removed rule.

    Raise a usage error if there is none.
    """
    from halfguard.lint.registry import (  # noqa: PLC0415
        find_rule,
        removal_of,
        removed_rules,
        rule_page,
    )

    if code.upper() in removed_rules():
        return f"{removal_of(code)}\n"
    found = _find_finding(code)
    if found is None:
        return rule_page(find_rule(code))
    return f"# {found['code']}: {found['name']}\n\n{found['page']}\n"


@cache
def finding_codes() -> dict[str, dict[str, str]]:
    """Return name, problem, why and cure of every code of doctor and probe."""
    import yaml  # noqa: PLC0415

    text = (resources.files("halfguard.cli") / "finding_codes.yaml").read_text("utf-8")
    codes: dict[str, dict[str, str]] = yaml.safe_load(text)
    return codes


def _find_finding(code: str) -> dict[str, Any] | None:
    for known, entry in finding_codes().items():
        if code.upper() == known or code.lower() == entry["name"]:
            return _finding_row(known)
    return None


def _finding_row(code: str) -> dict[str, Any]:
    entry = finding_codes()[code]
    by = "halfguard probe" if code.startswith("HG") else "halfguard doctor"
    problem, why, cure = (_sentence(entry[part]) for part in ("problem", "why", "cure"))
    page = f"{problem}\n\n*a finding of `{by}`*\n\n## Why\n{why}\n\n## What to do\n{cure}"
    return {"code": code, "name": entry["name"], "page": page}


def _sentence(text: str) -> str:
    return textwrap.fill(f"{text[0].upper()}{text[1:]}.", WIDTH)


def _row(code: str) -> dict[str, Any]:
    from halfguard.lint.registry import find_rule, removal_of, removed_rules  # noqa: PLC0415

    if code.upper() in removed_rules():
        return {"code": code.upper(), "removed": removal_of(code)}
    return _find_finding(code) or _rule_row(find_rule(code))


def _rule_row(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "name": rule.meta.name,
        "severity": rule.meta.severity,
        "fix": rule.meta.fix,
        "preview": rule.meta.preview,
        "page": rule.page,
    }


def _all_rows() -> list[dict[str, Any]]:
    from halfguard.lint.registry import all_rules  # noqa: PLC0415

    rows = [*map(_rule_row, all_rules()), *map(_finding_row, finding_codes())]
    return sorted(rows, key=lambda row: str(row["code"])[1] + str(row["code"]))
