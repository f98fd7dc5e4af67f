"""``halfguard rule``: print the page of a lint rule."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def rule(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="Code or name of a rule: HG101, mask-constant."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List all rules.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a lint rule finds, why it matters, and what to write instead."""
    from halfguard.errors import UsageError  # noqa: PLC0415
    from halfguard.lint.pages import rule_page  # noqa: PLC0415
    from halfguard.lint.registry import all_rules, find_rule  # noqa: PLC0415

    if every == (code is not None):
        raise UsageError(
            "Give one rule, or --all.",
            cure="Run: halfguard rule HG101, or halfguard rule --all",
        )
    rules = all_rules() if code is None else (find_rule(code),)
    if as_json:
        import json  # noqa: PLC0415

        rows = [
            {
                "code": r.code,
                "name": r.meta.name,
                "severity": r.meta.severity,
                "fix": r.meta.fix,
                "preview": r.meta.preview,
                "language": r.meta.language,
                "page": r.page,
            }
            for r in rules
        ]
        typer.echo(json.dumps(rows if every else rows[0], indent=2))
    elif every:
        for r in rules:
            note = "".join((" [*]" if r.meta.fix == "safe" else "", " (preview)" * r.meta.preview))
            typer.echo(f"{r.code}  {r.meta.name:<28}{r.page.partition(chr(10))[0]}{note}")
    else:
        typer.echo(rule_page(rules[0]), nl=False)
