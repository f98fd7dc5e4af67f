"""Pages of the rules, generated from their files for ``halfguard rule`` and the site."""

from __future__ import annotations

from halfguard.lint.registry import all_rules
from halfguard.lint.rule import Rule

GROUPS = {
    "HG0": "The file itself",
    "HG1": "Constants and numerics",
    "HG2": "Scaler and order of the step",
    "HG3": "Skips and NaN",
    "HG4": "Model, dtype and arguments",
    "HG5": "YAML configuration",
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
