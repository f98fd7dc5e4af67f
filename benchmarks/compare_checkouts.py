"""Show that two checkouts of halfguard behave alike, bit for bit.

scripts/bench compare_checkouts OLD NEW              print a table; exit code 1 if anything differs
scripts/bench compare_checkouts OLD NEW --json       print one JSON object; the table goes to standard error
scripts/bench compare_checkouts OLD NEW --runs 'gpt/default/*' --steps 40 --out FOLDER

The same training program (benchmarks/checkout_runs.py) runs on a CPU with the src folder of each checkout:
small models, healthy and with faults, in several configurations. Compared are the outcome of every step, with
its loss; the bits of weights, buffers, optimizer, scheduler, average and guard state at the end; and every
file of the run: run.json, steps.jsonl, incidents, snapshots. Values that differ between two runs of the same
code are left out: see LEFT_OUT. Log messages and the text of exceptions are not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "checkout_runs.py"
# Name of the file, text before the value, the value, and why it is left out.
LEFT_OUT = (
    ("run.json", r'"started":\s*', r'"[^"]*"', "started: the time"),
    ("incident.json", r'"(?:revision|dirty)":\s*', r'"[^"]*"', "git: of the working directory"),
    # safetensors writes the keys of __metadata__ in random order; content_of sorts them.
    (
        "good",
        r'\.safetensors":\s*\{"size":\s*\d+,\s*"crc32":\s*',
        r"\d+",
        "crc32 of *.safetensors: __metadata__ has a random order there",
    ),
)
COUNTS = ("steps", "applied", "retried", "skipped", "rollbacks")
MISSING = "(missing)"
LONGEST_VALUE = 60


@dataclass(frozen=True)
class Difference:
    """The first difference of a run, and the number of all: values, and parts of files."""

    item: str
    old: str
    new: str
    count: int

    def __str__(self) -> str:
        old, new = cut_to_difference(self.old, self.new)
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.item}: {old} != {new}{more}"


@dataclass(frozen=True)
class Row:
    """One run: what happened in it, the number of compared items, and the first difference."""

    run: str
    counts: dict[str, int]
    compared: int
    difference: Difference | None


class Child:
    """The training program on one checkout, in a process of its own."""

    def __init__(self, checkout: Path, folder: Path, steps: int, runs: str) -> None:
        self.checkout, self.folder = checkout, folder
        folder.mkdir(parents=True)
        self.errors = folder / "stderr.txt"
        source = checkout / "src"
        # One thread, one order of sets; and nothing is written to the checkout.
        settings = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", PROGRAM, "--source", source, "--folder", folder]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*map(str, command), "--steps", str(steps), "--runs", runs],
                cwd=ROOT,
                env=os.environ | settings | {"PYTHONPATH": str(source)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def next(self) -> dict[str, Any]:
        """Wait for the next line; exit with the last errors of the process if there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = self.errors.read_text("utf-8").splitlines()[-15:]
            stop("\n".join([f"The runs of {self.checkout} ended early:", *tail]))
        result: dict[str, Any] = json.loads(line)
        return result

    def finish(self) -> None:
        """Wait for the end; the last check of the program may still fail."""
        if self.process.wait():
            self.next()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def stop(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


def cut_to_difference(old: str, new: str) -> tuple[str, str]:
    """Shorten two long texts to the part in which they begin to differ."""
    if max(len(old), len(new)) <= LONGEST_VALUE:
        return old, new
    pairs = zip(old, new, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
    start = max(0, same - LONGEST_VALUE // 3)
    shown = (text[start : start + LONGEST_VALUE] for text in (old, new))
    first, second = (f"{'...' if start else ''}{text}" for text in shown)
    return first, second


def flat(value: Any, path: str = "") -> dict[str, str]:
    """Return parsed JSON as one text per leaf, by its path."""
    if not isinstance(value, dict | list) or not value:
        return {path: json.dumps(value)}
    found: dict[str, str] = {}
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        found |= flat(part, f"{path}.{key}" if path else str(key))
    return found


def content_of(path: Path) -> bytes | None:
    """Return the bytes of a file, without the values that are left out; None if there is no file."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        header, data = split_safetensors(content)
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        return json.dumps(header).encode() + data
    for name, before, value, _ in LEFT_OUT:
        if path.name == name:
            content = re.sub(f"({before}){value}".encode(), rb'\1"left out"', content)
    return content


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:start])
    return header, content[start:]


def parts_of(path: Path) -> dict[str, str]:
    """Return a file as named parts, to tell where two files differ: tensors, or fields of JSON."""
    content = content_of(path)
    if content is None:
        return {}
    if path.suffix == ".safetensors":
        header, data = split_safetensors(path.read_bytes())
        tensors = {name: entry.get("data_offsets", [0, 0]) for name, entry in header.items()}
        digests = {name: sha256(data[slice(*ends)]) for name, ends in tensors.items()}
        return {name: f"{flat(header[name])} {digest}" for name, digest in digests.items()}
    with contextlib.suppress(ValueError):
        if path.suffix == ".jsonl":
            lines = enumerate(map(json.loads, content.splitlines()), start=1)
            return flat({f"line {number}": line for number, line in lines})
        return flat(json.loads(content))
    return {"bytes": sha256(content)}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def differences(old: dict[str, str], new: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for key in old | new:
        if old.get(key) != new.get(key):
            yield key, old.get(key, MISSING), new.get(key, MISSING)


def differing_files(old: Path, new: Path, names: list[str]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        before, after = content_of(old / name), content_of(new / name)
        if before is None:
            yield name, MISSING, "a file"
        elif after is None:
            yield name, "a file", MISSING
        elif before != after:
            parts = list(differences(parts_of(old / name), parts_of(new / name)))
            for key, first, second in parts or [("layout", sha256(before), sha256(after))]:
                yield f"{name}, {key}", first, second


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def compare(old: Child, new: Child) -> Row:
    """Wait for the next run of both checkouts, and compare all of it."""
    before, after = old.next(), new.next()
    run: str = before["run"]
    folders = (old.folder / run, new.folder / run)
    files = sorted(files_in(folders[0]) | files_in(folders[1]))
    found = [
        *differences(before["values"], after["values"]),
        *differing_files(*folders, files),
    ]
    difference = Difference(*found[0], count=len(found)) if found else None
    return Row(
        run, before["counts"], len(before["values"] | after["values"]) + len(files), difference
    )


def print_line(cells: list[str], out: IO[str]) -> None:
    name, *numbers, result = cells
    print(
        f"{name:<36}", *(f"{number:>9}" for number in numbers), f" {result}", file=out, flush=True
    )


def compare_all(old: Child, new: Child, out: IO[str]) -> list[Row]:
    """Compare run after run, each as soon as both checkouts have done it."""
    heads = [child.next() for child in (old, new)]
    for title, head in zip(("old", "new"), heads, strict=True):
        print(f"{title}: {head['halfguard']}", file=out)
    print_line(["run", *COUNTS, "compared", "result"], out)
    rows = []
    for _ in range(heads[0]["runs"]):
        row = compare(old, new)
        numbers = [str(row.counts[name]) for name in COUNTS]
        result = "equal" if row.difference is None else str(row.difference)
        print_line([row.run, *numbers, str(row.compared), result], out)
        rows.append(row)
    for child in (old, new):
        child.finish()
    return rows


def left_out() -> list[str]:
    return [f"{name}, {why}" for name, *_, why in LEFT_OUT]


def as_json(arguments: argparse.Namespace, rows: list[Row]) -> str:
    summary = {
        "old": str(arguments.old),
        "new": str(arguments.new),
        "steps": arguments.steps,
        "equal": all(row.difference is None for row in rows),
        "left_out": left_out(),
        "runs": [asdict(row) for row in rows],
    }
    return json.dumps(summary, indent=2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="a checkout")
    parser.add_argument("new", type=Path, metavar="NEW", help="another checkout")
    parser.add_argument("--steps", type=int, default=200, help="steps of every run (200)")
    parser.add_argument("--runs", default="*", help="pattern of the names of runs (all)")
    parser.add_argument("--out", type=Path, help="new folder that keeps the files of the runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    for checkout in (arguments.old, arguments.new):
        if not (checkout / "src" / "halfguard" / "__init__.py").is_file():
            parser.error(f"{checkout} is not a checkout: it has no src/halfguard.")
    if arguments.out is not None and arguments.out.exists():
        parser.error(f"{arguments.out} exists; --out needs a new folder.")
    return arguments


def main() -> int:
    arguments = parse()
    out = sys.stderr if arguments.json else sys.stdout
    with contextlib.ExitStack() as stack:
        folder = arguments.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        old, new = (
            stack.enter_context(
                Child(checkout.resolve(), folder.resolve() / name, arguments.steps, arguments.runs)
            )
            for name, checkout in (("old", arguments.old), ("new", arguments.new))
        )
        rows = compare_all(old, new, out)
    if not rows:
        stop(f"No run is called {arguments.runs!r}.")
    different = [row.run for row in rows if row.difference is not None]
    items = sum(row.compared for row in rows)
    print(f"{len(rows)} runs, {items} items compared; {len(different)} runs differ.", file=out)
    print("Left out:", "; ".join(left_out()), file=out)
    if arguments.json:
        print(as_json(arguments, rows))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
