"""Presets for each framework: the change that its adapter needs, with the preset's numbers filled in.

The templates are in ``presets/templates``: a diff of three lines, a loop, or YAML of the framework. Their
placeholders are the values of ``_values``.
"""

from __future__ import annotations

import difflib
from importlib import resources
from string import Template

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig, preset_names, preset_text

FRAMEWORKS = ("plain", "lightning", "transformers", "accelerate", "hydra")
_HALF_ON_CPU = "On a CPU, this runs in FP16, which is slow."
_SINGLE_ON_CPU = {
    "transformers": "On a CPU, fp16=True trains in FP32, and the guard logs a warning.",
    "accelerate": 'On a CPU, mixed_precision="fp16" trains in FP32, and the guard logs a warning.',
}
_CHECK = "To see which precision your job runs in: halfguard doctor job.py:build"


def check_preset(name: str) -> str:
    """Return the name of a preset; raise a UsageError with similar names if there is none."""
    return _checked(name, preset_names(), "preset")


def preset_purpose(name: str) -> str:
    """Return the purpose of a preset: the first line of its file."""
    return _comments(name)[0]


def framework_text(name: str, framework: str) -> str:
    """Return the preset ``name`` for ``framework``: a loop, a diff with its settings, or YAML."""
    check_preset(name)
    _checked(framework, FRAMEWORKS, "framework")
    config = GuardConfig.load(name)
    if config.precision == "fp16-weights" and framework != "plain":
        raise UsageError(
            f"{name} is for 16-bit weights, which the {framework} adapter does not support.",
            cure=f"Keep the weights in FP32 and use fp16_safe, or use a plain loop: "
            f"halfguard presets {name} --for plain.",
        )
    template = (
        resources.files("halfguard.guard") / "presets" / "templates" / f"{framework}.template"
    )
    head = _head(name, framework)
    return _filled(template.read_text("utf-8"), {"head": head, **_values(name, config)})


def _checked(name: str, allowed: list[str] | tuple[str, ...], what: str) -> str:
    if name in allowed:
        return name
    close = difflib.get_close_matches(name, allowed, n=2, cutoff=0.5)
    guess = f"Did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"There is no {what} named {name!r}.", cure=f"{guess}Allowed: {', '.join(allowed)}."
    )


def _comments(name: str) -> list[str]:
    lines = preset_text(name).splitlines()
    return [line.removeprefix("#").strip() for line in lines if line.startswith("#")]


def _head(name: str, framework: str) -> str:
    """Return comments: the preset, and how to check a run."""
    lines = [f"halfguard preset {name} for {framework}.", *_comments(name)]
    lines += [_SINGLE_ON_CPU.get(framework, _HALF_ON_CPU), _CHECK]
    return "\n".join(f"# {line}" for line in lines)


def _values(name: str, config: GuardConfig) -> dict[str, object]:
    """Return every placeholder; None if the setting is not used."""
    max_norm = None if config.clip is None else config.clip.max_norm
    half = config.precision == "fp16-weights"
    clip = "" if max_norm is None else f", gradient_clip_val={max_norm}"
    parts = "" if config.accumulate == 1 else f", accumulate_grad_batches={config.accumulate}"
    return {
        "name": name,
        "optimizer": "hg.MasterWeights(optimizer)" if half else "optimizer",
        "accumulate": config.accumulate,
        "max_norm": max_norm,
        "trainer_max_norm": max_norm or 0.0,
        "lightning_options": clip + parts,
    }


def _filled(template: str, values: dict[str, object]) -> str:
    """Fill in the template, without the lines whose values are None."""
    lines = [Template(line) for line in template.splitlines()]
    kept = [line for line in lines if not any(values[n] is None for n in line.get_identifiers())]
    return "\n".join(line.substitute(values) for line in kept) + "\n"
