"""A preset as each framework writes it: one source of numbers, and one text a framework to fill in.

What a framework cannot be told is said in the text itself, so that nobody believes to have a feature that
the framework will never run. The texts are in ``presets/frameworks``, by precision: programs, or YAML for
Hydra, whose placeholders are the fields of ``GuardConfig``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import resources
from string import Template

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig, preset_names, preset_text

FRAMEWORKS = ("plain", "lightning", "transformers", "accelerate", "hydra")
_SPOKEN = {
    "lightning": "Lightning",
    "transformers": "transformers' Trainer",
    "accelerate": "Accelerate",
    "hydra": "Lightning",
}
_HALF_ON_CPU = "On a CPU this runs in FP16 for real, and slowly."
# Mixed precision that becomes FP32. Half weights stay half: their programs switch on what a CPU is denied.
_SINGLE_ON_CPU = {
    "transformers": "On a CPU fp16=True trains in FP32, without a word.",
    "accelerate": 'On a CPU mixed_precision="fp16" trains in FP32, without a word.',
}
_CHECK = "What your machine and your job really run in: halfguard doctor job.py:build"


def checked_preset(name: str) -> str:
    """The name, if a preset has it; a UsageError with those that look like it otherwise."""
    return _checked(name, preset_names(), "preset")


def preset_purpose(name: str) -> str:
    """What a preset is for: the first line of its file."""
    return _comments(name)[0]


def framework_text(name: str, framework: str) -> str:
    """The preset ``name`` as a program or a configuration for ``framework``."""
    checked_preset(name)
    _checked(framework, FRAMEWORKS, "framework")
    config = GuardConfig.load(name)
    folder = resources.files("halfguard.guard") / "presets" / "templates" / config.precision
    template = (folder / f"{framework}.template").read_text("utf-8")
    return _filled(template, {"head": _head(name, framework, config), **_values(name, config)})


def limits(config: GuardConfig, framework: str) -> Iterator[str]:
    """What of the configuration ``framework`` does not do, in sentences."""
    if framework == "plain":
        return
    skip, scale, clip = config.skip, config.scale, config.clip
    if framework == "accelerate":
        yield f"keep the scale within {scale.floor:.0f} and {scale.ceiling:.0f}: it may fall to 0"
    if skip.on_nonfinite == "retry_fp32":
        yield "repeat a step that overflowed in FP32: its batch is lost"
    if skip.max_grad_norm is not None:
        yield f"skip a step whose gradient norm is above {skip.max_grad_norm:g}"
    yield f"stop after {skip.max_consecutive} bad steps in a row"
    if config.spike is not None:
        yield f"skip a spike of {config.spike.sigma:g} sigma among {config.spike.window} steps"
    if config.recovery is not None:
        yield f"return to a snapshot, taken every {config.recovery.every} steps"
    if config.buffers != "none":
        yield "leave BatchNorm's buffers as they were when a step is skipped"
    if clip is not None and clip.norm_type != 2 and framework != "accelerate":
        yield f"clip by the {clip.norm_type:g}-norm: it clips by the 2-norm"


def _checked(name: str, allowed: list[str] | tuple[str, ...], what: str) -> str:
    if name in allowed:
        return name
    close = difflib.get_close_matches(name, allowed, n=2, cutoff=0.5)
    guess = f"Did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"There is no {what} named {name!r}.", cure=f"{guess}There are: {', '.join(allowed)}."
    )


def _comments(name: str) -> list[str]:
    lines = preset_text(name).splitlines()
    return [line.removeprefix("#").strip() for line in lines if line.startswith("#")]


def _head(name: str, framework: str, config: GuardConfig) -> str:
    """Comments: what the preset is, what the framework leaves out, and how to see what runs."""
    lines = [f"halfguard preset {name} for {framework}.", *_comments(name)]
    if missing := list(limits(config, framework)):
        lines.append(f"What {_SPOKEN[framework]} cannot be told, and does not do:")
        lines += [f"- {line}" for line in missing]
        lines.append(f"The guard does all of it: halfguard presets {name} --for plain")
    lines += [_on_a_cpu(framework, config), _CHECK]
    return "\n".join(f"# {line}" for line in lines)


def _on_a_cpu(framework: str, config: GuardConfig) -> str:
    if config.precision == "fp16-weights":
        return _HALF_ON_CPU
    return _SINGLE_ON_CPU.get(framework, _HALF_ON_CPU)


def _values(name: str, config: GuardConfig) -> dict[str, object]:
    """Every placeholder; None where there is nothing to say."""
    settings = [line for line in preset_text(name).splitlines() if not line.startswith("#")]
    max_norm = None if config.clip is None else config.clip.max_norm
    return {
        "name": name,
        "settings": "\n".join(settings),
        "accumulate": config.accumulate,
        "max_norm": max_norm,
        "norm_type": None if config.clip is None else config.clip.norm_type,
        "trainer_max_norm": max_norm or 0.0,
        **config.scale.model_dump(),
    }


def _filled(template: str, values: dict[str, object]) -> str:
    """The template's text, without the lines that would have said None."""
    lines = [Template(line) for line in template.splitlines()]
    kept = [line for line in lines if not any(values[n] is None for n in line.get_identifiers())]
    return "\n".join(line.substitute(values) for line in kept) + "\n"
