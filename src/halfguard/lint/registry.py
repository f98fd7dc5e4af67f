"""Rules register by being there: every ``rules/hgNNN_*.py`` is one rule, and no list names them."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil

from halfguard.errors import UsageError
from halfguard.lint import rules as folder
from halfguard.lint.rule import Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    names = sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if m.name[:2] == "hg")
    return tuple(_load(name) for name in names)


def _load(name: str) -> Rule:
    module = importlib.import_module(f"{folder.__name__}.{name}")
    meta = module.META
    if not name.startswith(meta.code.lower()):
        raise AssertionError(f"rules/{name}.py holds the rule {meta.code}")
    is_yaml = meta.language == "yaml"
    return Rule(
        meta=meta,
        page=inspect.cleandoc(module.__doc__ or ""),
        check_python=None if is_yaml else module.check,
        check_yaml=module.check if is_yaml else None,
        needles=tuple(word.encode() for word in meta.words),
        also=tuple(word.encode() for word in meta.also),
    )


def find_rule(code: str) -> Rule:
    """The rule with this code or name, or a usage error that lists what there is."""
    for rule in all_rules():
        if code.upper() == rule.code or code.lower() == rule.meta.name:
            return rule
    raise UsageError(
        f"There is no rule {code}.",
        cure=f"The codes run from {all_rules()[0].code} to {all_rules()[-1].code}; "
        "'halfguard rule --all' lists them.",
    )


def select(chosen: tuple[str, ...], ignored: tuple[str, ...], *, preview: bool) -> tuple[Rule, ...]:
    """The rules whose code begins with a chosen prefix and with no ignored one.

    A preview rule runs when previews are on, or when it is chosen by its full code. Where prefixes
    disagree the longer one wins, so that ``select=["HG1"], ignore=["HG103"]`` means what it says.
    """
    for prefix in (*chosen, *ignored):
        _check_prefix(prefix)
    return tuple(rule for rule in all_rules() if _is_on(rule, chosen, ignored, preview=preview))


def _check_prefix(prefix: str) -> None:
    if prefix != "ALL" and not any(rule.code.startswith(prefix) for rule in all_rules()):
        find_rule(prefix)


def _is_on(rule: Rule, chosen: tuple[str, ...], ignored: tuple[str, ...], *, preview: bool) -> bool:
    if rule.meta.preview and not preview and rule.code not in chosen:
        return False
    wanted = _longest(rule.code, chosen) if chosen else 0
    return wanted >= 0 and wanted > _longest(rule.code, ignored)


def _longest(code: str, prefixes: tuple[str, ...]) -> int:
    """Length of the longest prefix that fits; -1 where none does."""
    fitting = [0 if p == "ALL" else len(p) for p in prefixes if p == "ALL" or code.startswith(p)]
    return max(fitting, default=-1)
