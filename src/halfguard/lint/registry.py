"""Load the rules and write their pages: every file ``rules/hgNNN_*.py`` is one rule, and no list is kept.

Codes of rules that were removed are never used again; ``removed.txt`` says what answers for them now.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from importlib import resources

from halfguard.errors import UsageError
from halfguard.lint import rules as rules_package
from halfguard.lint.rule import Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code."""
    modules = pkgutil.iter_modules(rules_package.__path__)
    return tuple(_load(name) for name in sorted(m.name for m in modules if m.name[:2] == "hg"))


def _load(name: str) -> Rule:
    module = importlib.import_module(f"{rules_package.__name__}.{name}")
    meta = module.META
    if not name.startswith(meta.code.lower()):
        raise AssertionError(f"rules/{name}.py contains the rule {meta.code}")
    return Rule(
        meta=meta,
        page=inspect.cleandoc(module.__doc__ or ""),
        check=module.check,
        contains=tuple(text.encode() for text in meta.contains),
        also_contains=tuple(text.encode() for text in meta.also_contains),
        pattern=meta.pattern.encode(),
    )


def find_rule(code: str) -> Rule:
    """Return the rule with this code or name; raise a usage error if there is none."""
    for rule in all_rules():
        if code.upper() == rule.code or code.lower() == rule.meta.name:
            return rule
    if code.upper() in removed_rules():
        raise UsageError(removal_of(code))
    raise UsageError(
        f"There is no rule {code}.",
        cure=f"The codes run from {all_rules()[0].code} to {all_rules()[-1].code}; "
        "'halfguard rule' lists them.",
    )


@functools.cache
def removed_rules() -> dict[str, str]:
    """Return what answers for the codes of removed rules now."""
    lines = (resources.files("halfguard.lint") / "removed.txt").read_text("utf-8").splitlines()
    rows = (line.partition(": ") for line in lines)
    return {code: text for codes, _, text in rows for code in codes.split()}


def removal_of(code: str) -> str:
    """Return the one line about a removed rule."""
    return f"{code.upper()} was removed: {removed_rules()[code.upper()]}"


def select_rules(
    chosen: tuple[str, ...], ignored: tuple[str, ...], *, preview: bool
) -> tuple[Rule, ...]:
    """Return the rules whose code begins with a chosen prefix and with no ignored one.

    A preview rule runs if ``preview`` is on, or if it is chosen by its full code. If a chosen and an ignored
    prefix both match, the longer one wins: ``select=["HG1"], ignore=["HG103"]`` is HG1 without HG103.
    """
    for prefix in (*chosen, *ignored):
        if prefix not in ignored or not any(code.startswith(prefix) for code in removed_rules()):
            _check_prefix(prefix)
    return tuple(rule for rule in all_rules() if _is_on(rule, chosen, ignored, preview=preview))


def _check_prefix(prefix: str) -> None:
    if prefix != "ALL" and not any(rule.code.startswith(prefix) for rule in all_rules()):
        find_rule(prefix)


def _is_on(rule: Rule, chosen: tuple[str, ...], ignored: tuple[str, ...], *, preview: bool) -> bool:
    if rule.meta.preview and not preview and rule.code not in chosen:
        return False
    length = _longest_prefix(rule.code, chosen) if chosen else 0
    return length >= 0 and length > _longest_prefix(rule.code, ignored)


def _longest_prefix(code: str, prefixes: tuple[str, ...]) -> int:
    """Return the length of the longest prefix of a code, or -1 if there is none."""
    lengths = [0 if p == "ALL" else len(p) for p in prefixes if p == "ALL" or code.startswith(p)]
    return max(lengths, default=-1)


GROUPS = {
    "HG0": "The file itself",
    "HG1": "Constants and numerics",
    "HG2": "Scaler and order of the step",
    "HG3": "Skips and NaN",
    "HG4": "Model, dtype and arguments",
}


def rule_page(rule: Rule) -> str:
    """Return the page of one rule as Markdown."""
    title, _, body = rule.page.partition("\n")
    fix = f"{rule.meta.fix} fix" if rule.meta.fix else "no fix"
    facts = [f"severity {rule.meta.severity}", fix]
    if rule.meta.preview:
        facts.append("preview: off unless `--preview` is given")
    return f"# {rule.code}: {rule.meta.name}\n\n{title}\n\n*{'; '.join(facts)}*\n{body}\n"


def rule_index() -> str:
    """Return the index of all rules as Markdown, one table per group."""
    lines = [
        "# Lint rules",
        "",
        "Made from the rule files. `halfguard rule CODE` prints the same page.",
        "[The guide to lint](../../how-to/lint.md) shows how to run them.",
    ]
    for prefix, title in GROUPS.items():
        rules = [rule for rule in all_rules() if rule.code.startswith(prefix)]
        lines += ["", f"## {title}", "", "| code | name | fix | finds |", "|---|---|---|---|"]
        lines += [_row(rule) for rule in rules]
    return "\n".join(lines) + "\n"


def _row(rule: Rule) -> str:
    finds = rule.page.partition("\n")[0] + (" *(preview)*" if rule.meta.preview else "")
    return f"| [{rule.code}]({rule.code}.md) | {rule.meta.name} | {rule.meta.fix or ''} | {finds} |"
