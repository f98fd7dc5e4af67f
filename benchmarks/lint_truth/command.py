"""Measure how often lint is right, on public repositories that are split before anybody reads them.

repositories.txt names the repositories and their commits. A hash of the name decides whether a repository
belongs to the working half, on which rules are developed, or to the held-out half, on which they are judged.
repositories-2.txt to -11 are further held-out sets: each was listed when the set before had been judged,
and nobody read its repositories before the rules were final. No repository is committed
here: git clones are brought by hand.

scripts/bench lint_truth COMMAND:
export MIRROR FOLDER        write the files that lint reads of every repository to FOLDER; MIRROR holds git
                            folders as OWNER+NAME/repo, OWNER+NAME or OWNER/NAME
count FOLDER --half HALF    lint every repository of a half as one project, and count by rule
sample FOLDER --half HALF   write findings to judge, with their code, stratified by rule (JSON lines)
diffs FOLDER --half HALF    write what --fix changes, file by file, to judge (JSON lines); report a result
                            that does not parse or has more ruff findings (F and E9) than before
score FILE...               rates of judged findings or diffs, with 95% intervals
today FOLDER                note for every judged finding whether the rules still report it
recall FOLDER FILE          findings within two lines of the mistakes in FILE, which were found by reading;
                            whether a finding means the mistake is for a reader to say
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import hashlib
import json
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rate import Rate
from benchmarks.tables.sections import ROOT, update_sections
from halfguard.lint.project import is_about_setup

DATA = Path(__file__).parent
LISTS = (DATA / "repositories.txt", *(DATA / f"repositories-{n}.txt" for n in range(2, 12)))
SUFFIXES = (
    ".py", ".pyi", ".yaml", ".yml", ".toml", ".md", ".rst", ".sh", ".slurm", ".sbatch", ".json", ".bat",
    ".ipynb",
    "setup.cfg", "Pipfile",
)  # fmt: skip
HALVES = ("working", "held-out")
WHOLE = {f"held-out-{n}": LISTS[n - 1] for n in range(2, 12)}  # held out as a whole
SETS = (*HALVES, *WHOLE)
JUDGED = {
    "working": "working",
    "held-out": "heldout",
    "held-out-2": "heldout2",
    "held-out-3": "heldout3",
    "held-out-4": "heldout4",
    "held-out-5": "heldout5",
    "held-out-6": "heldout6",
    "held-out-7": "heldout7",
}
TABLE = (ROOT / "benchmarks" / "lint_truth" / "README.md", "rules")
ENOUGH, NEEDED = (
    5,
    0.8,
)  # a rule with this many judged findings speaks by default if this share is TRUE
VERDICTS = ("TRUE", "HARMLESS", "FALSE")
NEAR = 2  # lines between a mistake and a finding that names it
PRECISION = re.compile(
    r"GradScaler\(|autocast\(|amp\.initialize|\.half\(\)|bfloat16|float16|precision\s*[=:]|fp16|bf16|load_state_dict"
)
DEPRECATED = ("HG405", "HG413")  # names that are easy to get right, so they are counted apart


def half_of(name: str) -> str:
    """Return the set of a repository: a held-out list, or a half of the first by a hash of owner/name."""
    for whole, file in WHOLE.items():
        if name in {row[0] for row in _rows(file)}:
            return whole
    return HALVES[int(hashlib.sha256(name.lower().encode()).hexdigest(), 16) % 2]


def repositories() -> list[tuple[str, str]]:
    return [row for file in LISTS for row in _rows(file)]


@functools.cache
def _rows(file: Path) -> tuple[tuple[str, str], ...]:
    rows = (line.split() for line in file.read_text("utf-8").splitlines())
    return tuple((row[0], row[1]) for row in rows if row and not row[0].startswith("#"))


def folder_of(folder: Path, name: str) -> Path:
    return folder / half_of(name) / name.replace("/", "+")


def export(mirror: Path, folder: Path) -> None:
    for name, commit in repositories():
        flat = mirror / name.replace("/", "+")
        git = next((p for p in (flat / "repo", flat, mirror / name) if p.is_dir()), None)
        if git is None:
            print(f"{name}: no git folder below {mirror}")
            continue
        target = folder_of(folder, name)
        if not target.is_dir():
            print(f"{name}: {_write_files(git, commit, target)} files")


def _write_files(git: Path, commit: str, target: Path) -> int:
    """Write the readable files of a commit; a clone may lack large objects, which are left out."""
    listing = subprocess.run(
        ["git", "-C", git, "ls-tree", "-rz", commit], capture_output=True, check=True
    )
    rows = [
        row.partition("\t") for row in listing.stdout.decode("utf-8", "replace").split("\0") if row
    ]
    wanted = [(meta.split()[2], path) for meta, _, path in rows
              if meta.startswith("100") and _is_wanted(path)]  # fmt: skip
    count = 0
    for blob, path in wanted:
        shown = subprocess.run(
            ["git", "-C", git, "cat-file", "blob", blob], capture_output=True, check=False
        )
        if shown.returncode == 0:
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(shown.stdout)
            count += 1
    return count


def _is_wanted(path: str) -> bool:
    """Return whether lint reads a file: source, configuration, or requirements."""
    return path.endswith(SUFFIXES) or is_about_setup(path)


def findings_of(
    folder: Path, half: str, *, only: set[str] | None = None
) -> Iterable[tuple[str, Path, list[dict[str, Any]]]]:
    """Yield name, folder and findings of every repository of a half, each linted as one project."""
    for name, _ in repositories():
        root = folder_of(folder, name)
        if half_of(name) != half or not root.is_dir() or (only is not None and name not in only):
            continue
        command = [
            sys.executable,
            "-P",
            "-c",
            "from halfguard.cli import main; main()",
            "lint",
            ".",
            "--json",
        ]
        done = subprocess.run(
            command,
            cwd=root, capture_output=True, text=True, check=False,
            env={**__import__("os").environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        if done.returncode not in {0, 1}:
            raise SystemExit(f"{name}: {done.stderr}")
        if not done.stdout:
            raise SystemExit(f"{name}: {done.stderr}")
        yield name, root, json.loads(done.stdout)


def count(folder: Path, half: str) -> None:
    rules: Counter[str] = Counter()
    repos = lines = 0
    for _, root, found in findings_of(folder, half):
        rules.update(row["code"] for row in found)
        repos += 1
        lines += sum(p.read_bytes().count(b"\n") for p in root.rglob("*.py") if p.is_file())
    print(f"{repos} repositories, {lines} lines of Python, {sum(rules.values())} findings")
    for code, number in sorted(rules.items()):
        print(f"{code} {number}")


def sample(folder: Path, half: str, number: int, seed: int) -> None:
    """Write findings as JSON lines: rule by rule in turn, so that rare rules are judged whole."""
    by_rule: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, root, found in findings_of(folder, half):
        for row in (r for r in found if not r["condition"]):  # a note claims nothing
            by_rule[row["code"]].append({"repository": name, **_judged_row(root, row)})
    rng = random.Random(seed)
    for rows in by_rule.values():
        rng.shuffle(rows)
    chosen: list[dict[str, Any]] = []
    while len(chosen) < number and any(by_rule.values()):
        for code in sorted(by_rule):
            if by_rule[code] and len(chosen) < number:
                chosen.append(by_rule[code].pop())
    for row in sorted(chosen, key=lambda r: (r["code"], r["repository"], r["path"], r["line"])):
        print(json.dumps(row, ensure_ascii=False))


def diffs(folder: Path, half: str, number: int, seed: int) -> int:
    """Write the diffs of safe fixes; return 1 if one breaks syntax or adds ruff findings (F, E9)."""
    rows: list[dict[str, Any]] = []
    worse = 0
    for name, _ in repositories():
        root = folder_of(folder, name)
        if half_of(name) != half or not root.is_dir():
            continue
        for path, before, after in _fixed_files(root):
            problem = _problem(before, after)
            worse += bool(problem)
            shown = difflib.unified_diff(
                before.decode("utf-8", "replace").splitlines(), after.decode("utf-8", "replace").splitlines(),
                path, path, lineterm="", n=4,
            )  # fmt: skip
            rows.append({"repository": name, "code": "fix", "path": path, "problem": problem,
                         "source": list(shown), "verdict": "", "reason": ""})  # fmt: skip
    random.Random(seed).shuffle(rows)
    for row in sorted(rows[:number], key=lambda r: (r["repository"], r["path"])):
        print(json.dumps(row, ensure_ascii=False))
    print(f"{len(rows)} files changed, {worse} worse by machine", file=sys.stderr)
    return 1 if worse else 0


def _fixed_files(root: Path) -> Iterable[tuple[str, bytes, bytes]]:
    from halfguard.lint.files import find_files
    from halfguard.lint.run import Linter, run_files
    from halfguard.lint.settings import Settings

    settings = Settings(root=root)
    linter = Linter(settings, ("safe",)).with_project_of(root)
    for result in run_files(linter, find_files([root], settings)):
        if result.after != result.before:
            yield str(Path(result.path).relative_to(root)), result.before, result.after


def _problem(before: bytes, after: bytes) -> str:
    try:
        ast.parse(after)
    except SyntaxError as error:
        return f"does not parse: {error}"
    counts = [_ruff(before), _ruff(after)]
    more = counts[1] - counts[0]
    return f"new ruff findings: {dict(more)}" if more else ""


def _ruff(data: bytes) -> Counter[str]:
    command = [
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F,E9",
        "--output-format",
        "json",
        "--stdin-filename",
        "a.py",
        "-",
    ]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    return Counter(str(row["code"]) for row in json.loads(done.stdout or b"[]"))


def _judged_row(root: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Return what a judge sees: place, message and code, and empty fields for the judgement."""
    lines = (root / row["path"]).read_text("utf-8", "replace").splitlines()
    first = max(0, row["line"] - 26)
    code = [
        f"{n + 1}: {text[:160]}" for n, text in enumerate(lines[first : row["line"] + 14], first)
    ]
    kept = {key: row[key] for key in ("code", "path", "line", "message", "cure")}
    return {
        **kept,
        "source": code,
        "precision": list(_precision_facts(root)),
        "verdict": "",
        "reason": "",
    }


@functools.cache
def _precision_facts(root: Path) -> tuple[str, ...]:
    """Return lines of a repository that show in which precision it trains, for the judge."""
    found: list[str] = []
    files = sorted(
        p for p in root.rglob("*") if p.suffix in {".py", ".yaml", ".yml"} and p.is_file()
    )
    for file in files:
        for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
            if PRECISION.search(line) and not line.strip().startswith("#"):
                found.append(f"{file.relative_to(root)}:{number}: {line.strip()[:120]}")
    proofs = [row for row in found if re.search(r"GradScaler\(|autocast\(|amp\.initialize", row)]
    return tuple((proofs + [row for row in found if row not in proofs])[:12])


def score(files: list[Path]) -> int:
    rows = [
        json.loads(line) for file in files for line in file.read_text("utf-8").splitlines() if line
    ]
    unknown = [r for r in rows if r["verdict"] not in VERDICTS]
    if unknown:
        print(
            f"{len(unknown)} findings are not judged; the first is {unknown[0]['path']}:{unknown[0]['line']}"
        )
        return 1
    print("| rule | judged | true | harmless | false |\n|---|---|---|---|---|")
    for code in sorted({r["code"] for r in rows}):
        print(_score_row(code, [r for r in rows if r["code"] == code]))
    print(_score_row("deprecated names", [r for r in rows if r["code"] in DEPRECATED]))
    print(_score_row("all others", [r for r in rows if r["code"] not in DEPRECATED]))
    print(_score_row("all", rows))
    return 0


def _score_row(name: str, rows: list[dict[str, Any]]) -> str:
    cells = [name, str(len(rows))]
    for verdict in VERDICTS:
        hits = sum(r["verdict"] == verdict for r in rows)
        low, high = Rate(hits, len(rows)).interval
        cells.append(f"{hits} ({low:.0%} to {high:.0%})" if rows else "0")
    return f"| {' | '.join(cells)} |"


def recall(folder: Path, file: Path, half: str) -> None:
    """Print every mistake of a held-out set with the rules that speak near it, notes in brackets."""
    found = {name: rows for name, _, rows in findings_of(folder, half)}
    for mistake in (json.loads(line) for line in file.read_text("utf-8").splitlines()):
        places = [(mistake["path"], mistake["line"]), *map(tuple, mistake["also"])]
        near = {
            f"({row['code']})" if row["condition"] else row["code"]
            for row in found.get(mistake["repository"], [])
            if row["code"] not in DEPRECATED
            and any(row["path"] == p and abs(row["line"] - n) <= NEAR for p, n in places)
        }
        print(
            f"{mistake['repository']} {mistake['path']}:{mistake['line']} {' '.join(sorted(near)) or '-'}"
        )


def today(folder: Path) -> None:
    """Write into the judgements whether the rules still report each finding."""
    for half, name in JUDGED.items():
        rows = judgements(name)
        judged = {row["repository"] for row in rows}
        found = {(repository, row["code"], row["path"], row["line"])
                 for repository, _, given in findings_of(folder, half, only=judged)
                 for row in given}  # fmt: skip
        for row in rows:
            row["today"] = (row["repository"], row["code"], row["path"], row["line"]) in found
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (DATA / f"{name}.jsonl").write_text(text, "utf-8")


def judgements(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def table() -> str:
    """Return the table of all rules with judged findings: then, today, and the state."""
    from halfguard.catalogue import entry
    from halfguard.lint.registry import all_rules

    rows = [row for name in JUDGED.values() for row in judgements(name)]
    lines = [
        "| rule | judged | true | found today | of them true |",
        "|---|---|---|---|---|",
    ]
    codes = list(dict.fromkeys(rule.code for rule in all_rules()))
    for code in codes:
        judged = [row for row in rows if row["code"] == code]
        if judged:
            now = [row for row in judged if row["today"]]
            cells = [f"{code} {entry(code).name}", *_shares(judged), *_shares(now)]
            lines.append(f"| {' | '.join(cells)} |")
    silent = set(codes) - {row["code"] for row in rows}
    return "\n".join([*lines, "", f"{len(silent)} other rules had no finding."])


def _shares(rows: list[dict[str, Any]]) -> tuple[str, str]:
    true = sum(row["verdict"] == "TRUE" for row in rows)
    return str(len(rows)), f"{true} ({true / len(rows):.0%})" if rows else "0"


def is_too_often_wrong(code: str) -> bool:
    """Return whether a rule's judged findings forbid that it speaks."""
    rows = [
        row
        for name in JUDGED.values()
        for row in judgements(name)
        if row["code"] == code and row["today"]
    ]
    true = sum(row["verdict"] == "TRUE" for row in rows)
    return len(rows) >= ENOUGH and true < NEEDED * len(rows)


def update(*, check: bool) -> list[str]:
    """Write the table of the rules, or return what is wrong with it."""
    return update_sections({TABLE: table()}, check=check)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export")
    exporting.add_argument("mirror", type=Path)
    exporting.add_argument("folder", type=Path)
    for name in ("count", "sample", "diffs"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("--half", choices=SETS, required=True)
        if name != "count":
            command.add_argument("--number", type=int, default=150 if name == "sample" else 60)
            command.add_argument("--seed", type=int, default=0)
    commands.add_parser("today").add_argument("folder", type=Path)
    commands.add_parser("score").add_argument("files", type=Path, nargs="+")
    recalling = commands.add_parser("recall")
    recalling.add_argument("folder", type=Path)
    recalling.add_argument("file", type=Path)
    recalling.add_argument("--half", choices=SETS, default="held-out")
    given = parser.parse_args()
    if given.command == "export":
        export(given.mirror, given.folder)
    elif given.command == "count":
        count(given.folder, given.half)
    elif given.command == "sample":
        sample(given.folder, given.half, given.number, given.seed)
    elif given.command == "diffs":
        return diffs(given.folder, given.half, given.number, given.seed)
    elif given.command == "today":
        today(given.folder)
    elif given.command == "recall":
        recall(given.folder, given.file, given.half)
    else:
        return score(given.files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
