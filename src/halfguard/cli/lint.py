"""``halfguard lint``: find and fix code that fails in float16 training."""

from __future__ import annotations

import dataclasses
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halfguard.errors import UsageError

if TYPE_CHECKING:
    from halfguard.lint.match import FixKind
    from halfguard.lint.run import FileResult, Linter
    from halfguard.lint.settings import Settings

_MIN_FILES_FOR_BAR = 1000


class Format(StrEnum):
    """Output format of the findings."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders; - reads stdin.", metavar="PATH..."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the safe fixes.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: apply unsafe fixes too.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what --fix would change, without applying it.")
    ] = False,
    select: Annotated[
        str, typer.Option(help="Run only these codes or prefixes: HG1,HG201.", metavar="CODES")
    ] = "",
    ignore: Annotated[
        str, typer.Option(help="Skip these codes or prefixes.", metavar="CODES")
    ] = "",
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Find code that fails in float16 training, and fix it.

    Exit code 0: no findings, or notes only; 1: findings, or changes that --diff shows; 2: wrong arguments.
    """
    from halfguard.lint.output import FORMATS  # noqa: PLC0415
    from halfguard.lint.run import Linter  # noqa: PLC0415

    if not paths:
        raise UsageError("Specify files or folders to check; '.' is the current folder.")
    settings = _settings(paths, select, ignore)
    kinds: tuple[FixKind, ...] = ("safe", "unsafe") if unsafe_fixes else ("safe",)
    linter = Linter(settings, kinds if fix or diff else ())
    if paths == [Path("-")]:
        results = [linter.check_bytes(sys.stdin.buffer.read(), "stdin.py")]
    else:
        results = _run(linter, paths)
    if diff:
        raise typer.Exit(int(_print_diff(results)))
    if fix:
        _write(results)
    if fix and paths == [Path("-")]:
        sys.stdout.buffer.write(results[0].after)
    else:
        sys.stdout.write(FORMATS["json" if as_json else output.value](results))
    raise typer.Exit(int(any(not d.condition for r in results for d in r.diagnostics)))


def _settings(paths: list[Path], select: str, ignore: str) -> Settings:
    from halfguard.lint.settings import load_settings  # noqa: PLC0415

    first = Path() if paths[0] == Path("-") else paths[0]
    settings = load_settings(first if first.exists() else Path())
    chosen: dict[str, Any] = {
        name: tuple(part.strip().upper() for part in codes.split(",") if part.strip())
        for name, codes in (("select", select), ("ignore", ignore))
        if codes
    }
    if chosen.get("ignore"):
        chosen["ignore"] = (*settings.ignore, *chosen["ignore"])
    settings = dataclasses.replace(settings, **chosen)
    settings.rules()  # raises a usage error for an unknown code, before any file is read
    return settings


def _run(linter: Linter, paths: list[Path]) -> list[FileResult]:
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.lint.files import find_files  # noqa: PLC0415
    from halfguard.lint.run import run_files  # noqa: PLC0415

    files = find_files(paths, linter.settings)
    linter = linter.with_project_of(paths[0])
    if len(files) < _MIN_FILES_FOR_BAR:
        return list(run_files(linter, files))
    with progress("lint, files", len(files), alive=False) as bar:
        return list(run_files(linter, files, bar.advance))


def _print_diff(results: list[FileResult]) -> bool:
    import difflib  # noqa: PLC0415

    changed = [result for result in results if result.after != result.before]
    for result in changed:
        before, after = (
            data.decode("utf-8", "replace").splitlines(keepends=True)
            for data in (result.before, result.after)
        )
        lines = difflib.unified_diff(before, after, result.path, result.path)
        sys.stdout.writelines(line if line.endswith("\n") else f"{line}\n" for line in lines)
    return bool(changed)


def _write(results: list[FileResult]) -> None:
    from halfguard.records import write_atomically  # noqa: PLC0415

    for result in results:
        if result.after != result.before and result.path != "stdin.py":
            write_atomically(result.path, result.after)
