"""Load the rules, and choose among them by prefixes of their codes."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from halfguard import catalogue
from halfguard.errors import UsageError
from halfguard.lint import rules as rules_package
from halfguard.lint.rule import RULES, Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code."""
    for module in pkgutil.iter_modules(rules_package.__path__):
        importlib.import_module(f"{rules_package.__name__}.{module.name}")
    return tuple(sorted(RULES, key=lambda rule: rule.code))


def select_rules(chosen: tuple[str, ...], ignored: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules whose code begins with a chosen prefix and with no ignored one.

    If both match, the longer one wins: ``select=["HG1"], ignore=["HG104"]`` is HG1 without HG104.
    """
    for prefix in (*chosen, *ignored):
        known = {rule.code for rule in all_rules()}
        if prefix in ignored:
            known |= {*catalogue.removed_codes(), *catalogue.old_codes()}
            known |= {one.code for one in catalogue.all_entries()}
        if prefix != "ALL" and not any(code.startswith(prefix) for code in known):
            seen = catalogue.find(prefix).seen
            raise UsageError(f"{prefix} is not a lint rule. It is reported by {', '.join(seen)}.")
    return tuple(rule for rule in all_rules() if _is_on(rule.code, chosen, ignored))


def _is_on(code: str, chosen: tuple[str, ...], ignored: tuple[str, ...]) -> bool:
    length = _longest_prefix(code, chosen) if chosen else 0
    return length >= 0 and length > _longest_prefix(code, ignored)


def _longest_prefix(code: str, prefixes: tuple[str, ...]) -> int:
    """Return the length of the longest prefix of a code, or -1 if there is none."""
    lengths = [0 if p == "ALL" else len(p) for p in prefixes if p == "ALL" or code.startswith(p)]
    return max(lengths, default=-1)
