"""Broken, odd and enormous sources, made from the fixtures by a seeded generator.

``scripts/soak lint [COUNT [SEED]]`` lints and fixes that many, and names the slowest. A source that raises,
or takes lint longer than two seconds of processor time, is an error; seed and number repeat it.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from halfguard.lint.engine import lint_bytes
from halfguard.lint.fixes import fix_bytes
from halfguard.lint.registry import all_rules
from tests.lint.helper import FIXTURES, PREVIEW

LIMIT = 2.0
FIX_LIMIT = 3 * LIMIT  # a fix lints the file again after every pass, and every file has two or more
_TOKEN = re.compile(rb"\w+|\s+|[^\w\s]")
Mutation = Callable[[random.Random, bytes], bytes]


def _tokens(rng: random.Random, data: bytes) -> bytes:
    """Drop, double, swap and replace tokens."""
    parts = _TOKEN.findall(data)
    for _ in range(rng.randint(1, 8)):
        if len(parts) < 3:
            break
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        kind = rng.randrange(4)
        if kind == 0:
            del parts[at]
        elif kind == 1:
            parts.insert(at, parts[other])
        elif kind == 2:
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts[at] = rng.choice(
                (b"(", b")", b":", b"=", b"*", b"lambda", b"await", b"...", b"'")
            )
    return b"".join(parts)


def _lines(rng: random.Random, data: bytes) -> bytes:
    """Move, double and indent lines."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(lines))
        line = lines[at]
        lines[at] = rng.choice(
            (b"    " + line, line.strip(), line + b"; " + line.strip(), b"\t" + line)
        )
        if rng.random() < 0.5:
            lines.insert(rng.randrange(len(lines)), line)
    return b"\n".join(lines)


def _joined(rng: random.Random, data: bytes) -> bytes:
    """The source many times over, so that everything is defined again and again."""
    return data * rng.randint(2, 12)


def _nested(rng: random.Random, data: bytes) -> bytes:
    """Deep blocks around the source, or deep expressions inside it."""
    depth = rng.choice((5, 20, 60, 95, 150))
    if rng.random() < 0.5:
        heads = b"".join(b" " * n + b"for i in x:\n" for n in range(depth))
        return heads + b"\n".join(b" " * depth + line for line in data.split(b"\n"))
    opening, closing = rng.choice(
        ((b"(", b")"), (b"[", b"]"), (b"-", b""), (b"not ", b""), (b"f(", b")"))
    )
    depth *= rng.choice((1, 10, 60))
    return data + b"\nx = " + opening * depth + b"y" + closing * depth + b"\n"


def _chained(rng: random.Random, data: bytes) -> bytes:
    """Chains of attributes, calls, operators and conditions."""
    link = rng.choice((b".a", b"()", b"[0]", b" + y", b" if y else z", b".half().float()", b" @ y"))
    return data + b"\nx = scores" + link * rng.choice((10, 200, 3000)) + b".masked_fill(m, -1e9)\n"


def _long(rng: random.Random, data: bytes) -> bytes:
    """Very long lines and names."""
    size = rng.choice((1_000, 50_000, 400_000))
    filler = rng.choice((b"a" * size, b"1," * (size // 2), b"'" + b"x" * size + b"'", b" " * size))
    return data + b"\nx = [" + filler + b"]; y = z.masked_fill(m, -1e9)\n"


def _encoded(rng: random.Random, data: bytes) -> bytes:
    """Marks, coding comments, null bytes, and bytes of no encoding."""
    kind = rng.randrange(6)
    if kind == 0:
        return b"\xef\xbb\xbf" + data
    if kind == 1:
        names = (b"latin-1", b"utf-16", b"rot13", b"cp1252", b"nonsense", b"utf-7", b"idna")
        return b"# -*- coding: " + rng.choice(names) + b" -*-\n" + data
    if kind == 2:
        return data.decode("latin-1").encode(rng.choice(("utf-16", "utf-32", "utf-16-be")))
    at = rng.randrange(len(data))
    junk = rng.choice(
        (b"\x00", b"\xff", b"\xed\xa0\x80", b"\x0c", b"\r", b"\x1a", "é日\u2028".encode())
    )
    if kind == 3:
        return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\x0c\n", b"\\\n")))
    return data[:at] + junk + data[at:]


MUTATIONS: tuple[Mutation, ...] = (
    _tokens, _tokens, _tokens, _lines, _lines, _joined, _nested, _chained, _long, _encoded,
)  # fmt: skip


def source(seed: int, number: int) -> tuple[str, bytes]:
    """The path and the bytes of one fuzzed source; the same for the same seed and number."""
    rng = random.Random(f"{seed}:{number}")
    path = rng.choice(_FIXTURES)
    data = path.read_bytes()
    for _ in range(rng.randint(1, 3)):
        data = rng.choice(MUTATIONS)(rng, data or b"\n")
    return path.name, data


_FIXTURES = sorted(FIXTURES.rglob("*.*"))


@dataclass(frozen=True)
class Slowest:
    """The slowest source, and how many were looked at."""

    count: int
    number: int
    seconds: float
    findings: int


def fuzz(count: int = 50_000, seed: int = 0) -> Slowest:
    """Lint and fix ``count`` sources; raise where lint does, or where one takes too long."""
    rules, worst, findings = all_rules(), (0.0, 0), 0
    for number in range(count):
        name, data = source(seed, number)
        start = time.process_time()
        try:
            found = lint_bytes(data, name, PREVIEW, rules)
            middle = time.process_time()
            if any(d.fix for d in found):
                fix_bytes(data, name, PREVIEW, rules, ("safe", "unsafe"))
        except Exception as error:
            raise AssertionError(f"source {number} of seed {seed} ({name}) raises") from error
        seconds, fixing = middle - start, time.process_time() - middle
        findings += len(found)
        worst = max(worst, (seconds, number))
        if seconds > LIMIT or fixing > FIX_LIMIT:
            raise AssertionError(
                f"source {number} of seed {seed} took {seconds:.1f} and {fixing:.1f} s"
            )
        if number % 1000 == 999 and count > 1000:
            print(f"{number + 1} sources, slowest {worst[0]:.2f} s", flush=True)
    return Slowest(count, worst[1], worst[0], findings)


if __name__ == "__main__":
    print(fuzz(*map(int, sys.argv[1:])))
