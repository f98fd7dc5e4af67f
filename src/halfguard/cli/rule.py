"""``halfguard rule``: print what a code means, whatever instrument has printed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from halfguard.catalogue import Entry


def rule(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="Code or name: HG101, HD106, mask-constant."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a code means and what to do. Without a code, list all codes."""
    from halfguard.catalogue import all_entries, find  # noqa: PLC0415

    if as_json:
        import json  # noqa: PLC0415

        rows = list(map(_row, all_entries()))
        typer.echo(json.dumps(rows if code is None else _row(find(code)), indent=2))
    elif code is None:
        for one in all_entries():
            typer.echo(f"{one.code}  {one.name:<30}{one.title}{' [*]' * (one.fix == 'safe')}")
    else:
        typer.echo(page_of(code), nl=False)


def page_of(code: str) -> str:
    """Return the page of a code or name, or one line about a removed one."""
    from halfguard.catalogue import find, removed_codes  # noqa: PLC0415

    if code.upper() in removed_codes():
        return f"{code.upper()} was removed: {removed_codes()[code.upper()]}\n"
    found = find(code)
    renamed = f"{code.upper()} is {found.code} now.\n\n" if code.upper() in found.old else ""
    return f"{renamed}{found.markdown}"


def _row(one: Entry) -> dict[str, Any]:
    return {
        "code": one.code,
        "name": one.name,
        "severity": one.severity,
        "seen": one.seen,
        "fix": one.fix,
        "old": one.old,
        "page": one.page,
    }
