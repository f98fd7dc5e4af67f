"""What a study compares: one frozen, checked specification, from YAML or from keywords.

A candidate is a precision and what protects it. The simple ones are words (``fp16-mixed``, ``fp16-mixed
guarded``); the others are mappings. Paths in a file are relative to that file, so that a study can be
started from anywhere. A mistake is answered with the key as the user wrote it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from halfguard.errors import ConfigError
from halfguard.validation.sections import (
    MOST_SEEDS,
    Arm,
    Budget,
    Candidate,
    ExecutorSpec,
    Metric,
    Section,
    Thresholds,
    as_executor,
    as_seeds,
)

PLACEHOLDERS = ("{precision}", "{seed}", "{out}")


class Spec(Section):
    """A study, as ``halfguard validate SPEC.yaml`` reads it."""

    name: str = Field(min_length=1)
    entry: str | None = None
    command: str | None = Field(
        default=None, description="with {precision}, {seed} and {out}; no shell is involved"
    )
    baseline: Arm = Candidate(name="fp32", precision="fp32")
    candidates: tuple[Arm, ...] = Field(min_length=1)
    seeds: Annotated[
        tuple[int, ...],
        BeforeValidator(as_seeds),
        Field(min_length=1, max_length=MOST_SEEDS),
    ] = (0, 1, 2, 3, 4)
    steps: int | None = Field(default=None, ge=1, description="batches of a run; entry only")
    metric: Metric
    thresholds: Thresholds = Thresholds()
    sequential: bool = Field(default=False, description="stop as soon as every verdict is certain")
    budget: Budget = Budget()
    executor: Annotated[ExecutorSpec, BeforeValidator(as_executor)] = ExecutorSpec()
    evaluation: Literal["as-trained", "fp32"] = Field(
        default="as-trained", description="the precision in which the trained model is judged"
    )
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @property
    def folder(self) -> Path:
        """What the paths in it are relative to."""
        return self._folder

    @property
    def arms(self) -> tuple[Candidate, ...]:
        """The baseline, then the candidates as listed."""
        return (self.baseline, *self.candidates)

    @model_validator(mode="after")
    def _one_job(self) -> Self:
        if (self.entry is None) == (self.command is None):
            raise ValueError("one of entry and command is needed, and only one")
        if self.entry is not None and self.steps is None:
            raise ValueError("steps is needed with entry: how many batches a run trains on")
        return self

    @model_validator(mode="after")
    def _command_is_complete(self) -> Self:
        if self.command is None:
            return self
        missing = [part for part in PLACEHOLDERS if part not in self.command]
        if missing:
            raise ValueError(f"command lacks {', '.join(missing)}")
        if not shlex.split(self.command):
            raise ValueError("command is empty")
        if self.steps is not None or self.evaluation != "as-trained":
            raise ValueError("steps and evaluation are the script's own business with command")
        guarded = [arm.name for arm in self.arms if arm.guard is not None or arm.plan is not None]
        if guarded:
            raise ValueError(f"a command cannot be given a guard or a plan: {', '.join(guarded)}")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [arm.name for arm in self.arms]
        for what, values in (("name", names), ("seed", [str(seed) for seed in self.seeds])):
            twice = {value for value in values if values.count(value) > 1}
            if twice:
                raise ValueError(f"every {what} must be unique; twice: {', '.join(sorted(twice))}")
        return self

    def dump(self) -> dict[str, Any]:
        """The specification with every default filled in, in the user's keys."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def load(cls, source: Spec | Mapping[str, Any] | str | os.PathLike[str]) -> Spec:
        """From a YAML file, a mapping of the same keys, or a specification that is one already."""
        if isinstance(source, Spec):
            return source
        if isinstance(source, Mapping):
            return _checked(cls, source, "The specification")
        path = Path(source)
        try:
            values = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The specification {str(path)!r} cannot be read: {error}."
            ) from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {error}.") from error
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path} must hold keys and values, not a {type(values).__name__}.",
                cure=_keys(Spec, ()),
            )
        spec = _checked(cls, values, str(path))
        spec._folder = path.resolve().parent
        return spec


def _checked(cls: type[Spec], values: Mapping[str, Any], where: str) -> Spec:
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        items = error.errors(include_url=False)[:5]
        problems = "; ".join(
            f"{_place(item['loc'])}: {item['msg'].removeprefix('Value error, ')}" for item in items
        )
        cures = dict.fromkeys(_keys(cls, item["loc"]) for item in items)
        raise ConfigError(f"{where} is not a study: {problems}.", cure="\n".join(cures)) from error
    except ValueError as error:  # shlex: a quotation that is not closed; float("x%")
        raise ConfigError(f"{where} is not a study: {error}.") from error


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc) or "values"


def _keys(section: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The keys of the section in which a problem lies."""
    names: list[str] = []
    for part in loc[:-1]:
        field = section.model_fields.get(str(part))
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        found = next(
            (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None
        )
        if found is None:
            break
        section = found
        names.append(str(part))
    keys = [field.alias or name for name, field in section.model_fields.items()]
    return f"Keys of {'.'.join(names) or 'a study'} are: {', '.join(keys)}."
