"""Presets as programs or settings for each framework, filled in from the preset's YAML.

The text lists the settings that a framework does not support, so that nobody relies on a feature that never
runs. The templates are in ``presets/templates``, by precision: programs, or YAML for Hydra. Their
placeholders are the fields of ``GuardConfig``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import resources
from string import Template

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig, preset_names, preset_text

FRAMEWORKS = ("plain", "lightning", "transformers", "accelerate", "hydra")
_DISPLAY_NAMES = {
    "lightning": "Lightning",
    "transformers": "transformers' Trainer",
    "accelerate": "Accelerate",
    "hydra": "Lightning",
}
_HALF_ON_CPU = "On a CPU this runs in FP16 for real, and slowly."
# Mixed precision that becomes FP32. Half weights stay half: their programs enable autocast on the CPU too.
_SINGLE_ON_CPU = {
    "transformers": "On a CPU fp16=True trains in FP32, without a warning.",
    "accelerate": 'On a CPU mixed_precision="fp16" trains in FP32, without a warning.',
}
_CHECK = "See which precision your machine and job really run in: halfguard doctor job.py:build"


def check_preset(name: str) -> str:
    """Return the name of a preset; raise a UsageError with similar names if there is none."""
    return _checked(name, preset_names(), "preset")


def preset_purpose(name: str) -> str:
    """Return the purpose of a preset: the first line of its file."""
    return _comments(name)[0]


def framework_text(name: str, framework: str) -> str:
    """Return the preset ``name`` as a program or a configuration for ``framework``."""
    check_preset(name)
    _checked(framework, FRAMEWORKS, "framework")
    config = GuardConfig.load(name)
    folder = resources.files("halfguard.guard") / "presets" / "templates" / config.precision
    template = (folder / f"{framework}.template").read_text("utf-8")
    return _filled(template, {"head": _head(name, framework, config), **_values(name, config)})


def unsupported_settings(config: GuardConfig, framework: str) -> Iterator[str]:
    """Yield a sentence for each setting that ``framework`` does not support."""
    if framework == "plain":
        return
    skip, scale, clip = config.skip, config.scale, config.clip
    if clip is not None and clip.norm_type != 2 and framework != "accelerate":
        yield f"clip by the {clip.norm_type:g}-norm: it clips by the 2-norm"
    if _has_adapter(config, framework):
        return
    if framework == "accelerate":
        yield f"keep the scale between {scale.floor:.0f} and {scale.ceiling:.0f}: it may fall to 0"
    if skip.on_nonfinite == "retry_fp32":
        yield "repeat in FP32 a step that overflowed: its batch is lost"
    if skip.max_grad_norm is not None:
        yield f"skip a step whose gradient norm is above {skip.max_grad_norm:g}"
    yield f"stop after {skip.max_consecutive} bad steps in a row"
    if config.spike is not None:
        yield f"skip a spike of {config.spike.sigma:g} sigma among {config.spike.window} steps"
    if config.recovery is not None:
        yield f"roll back to a snapshot, taken every {config.recovery.every} steps"
    if config.buffers != "none":
        yield "restore BatchNorm's buffers when a step is skipped"


def _has_adapter(config: GuardConfig, framework: str) -> bool:
    """Return whether the printed text has the whole guard in it."""
    return framework in {"lightning", "hydra"} and config.precision != "fp16-weights"


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
    """Return comments: the preset, what the framework does not support, and how to check a run."""
    lines = [f"halfguard preset {name} for {framework}.", *_comments(name)]
    if missing := list(unsupported_settings(config, framework)):
        lines.append(f"{_DISPLAY_NAMES[framework]} has no settings for these. It does not:")
        lines += [f"- {line}" for line in missing]
        lines.append(f"The guard does all of it: halfguard presets {name} --for plain")
    lines += [_on_a_cpu(framework, config), _CHECK]
    return "\n".join(f"# {line}" for line in lines)


def _on_a_cpu(framework: str, config: GuardConfig) -> str:
    if config.precision == "fp16-weights":
        return _HALF_ON_CPU
    return _SINGLE_ON_CPU.get(framework, _HALF_ON_CPU)


def _values(name: str, config: GuardConfig) -> dict[str, object]:
    """Return every placeholder; None if the setting is not used."""
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
    """Fill in the template, without the lines whose values are None."""
    lines = [Template(line) for line in template.splitlines()]
    kept = [line for line in lines if not any(values[n] is None for n in line.get_identifiers())]
    return "\n".join(line.substitute(values) for line in kept) + "\n"
