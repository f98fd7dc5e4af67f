"""Declare the arguments of a command once, without typer, and read a plain command line.

Importing typer takes longer than checking a file, so ``halfguard lint`` does without it. Only arguments that
are valid and written out in full are read here. For help and mistakes typer reads them again, from the same
declaration.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

Command = Callable[..., int]  # returns the exit code


@dataclass(frozen=True)
class Argument:
    """A positional argument."""

    help: str
    metavar: str | None = None


@dataclass(frozen=True)
class Option:
    """An option; without ``flag`` its name is that of the parameter."""

    help: str
    flag: str = ""
    metavar: str | None = None


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command, as its signature declares it."""

    name: str
    kind: Any  # the type, without None
    is_list: bool
    default: object
    declared: Argument | Option

    @property
    def flag(self) -> str:
        given = self.declared.flag if isinstance(self.declared, Option) else ""
        return given or f"--{self.name.replace('_', '-')}"


def read_parameters(command: Command) -> Iterator[Parameter]:
    """Yield the parameters of a command, each with its ``Argument`` or ``Option``."""
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, declared = get_args(hints[name])
        if get_origin(kind) is types.UnionType:
            (kind,) = (part for part in get_args(kind) if part is not type(None))
        is_list = get_origin(kind) is list
        yield Parameter(
            name, get_args(kind)[0] if is_list else kind, is_list, parameter.default, declared
        )


def typer_annotation(command: Command, name: str, declared: object) -> object:
    """Return the annotation of a parameter with typer's declaration in the place of ours."""
    return Annotated[get_type_hints(command)[name], declared]


def read_plain(command: Command, words: Sequence[str]) -> dict[str, object] | None:
    """Return the arguments of a command line that needs no explanation; None if typer must read it."""
    parameters = list(read_parameters(command))
    options = {p.flag: p for p in parameters if isinstance(p.declared, Option)}
    positional = next((p for p in parameters if isinstance(p.declared, Argument)), None)
    found: dict[str, object] = {}
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if option is None:
            if word.startswith("-") and word != "-":
                return None
            rest.append(word)
        elif option.kind is bool:
            if equals:
                return None
            found[option.name] = True
        else:
            try:
                found[option.name] = option.kind(value if equals else next(remaining))
            except (StopIteration, ValueError):
                return None
    if rest:
        if positional is None or not positional.is_list:
            return None
        found[positional.name] = [positional.kind(word) for word in rest]
    return found
