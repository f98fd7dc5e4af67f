"""``halfguard presets``: list the presets, or print one as YAML or for a framework."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from halfguard.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from halfguard.guard.config import GuardConfig


def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help=("Preset to print; without a name, all presets are listed.")
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="FRAMEWORK",
            help="Print the change for: plain, lightning, transformers, accelerate or hydra.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets, print one as YAML, or print the code changes for a framework.

    Exit code 0: printed; 2: usage error.
    """
    from halfguard.guard.config import GuardConfig, preset_names, preset_text  # noqa: PLC0415
    from halfguard.guard.presets import frameworks  # noqa: PLC0415

    if name is None:
        if framework is not None:
            raise UsageError(
                "--for needs the name of a preset.",
                cure=f"Presets are: {', '.join(preset_names())}.",
            )
        configs = {known: GuardConfig.load(known) for known in preset_names()}
        _list(configs, as_json=as_json)
        return
    config = GuardConfig.load(frameworks.check_preset(name))
    text = preset_text(name) if framework is None else frameworks.framework_text(name, framework)
    if not as_json:
        typer.echo(text, nl=False)
        return
    typer.echo(json.dumps(_describe(name, config) | {"for": framework, "text": text}))


def _describe(name: str, config: GuardConfig) -> dict[str, object]:
    from halfguard.guard.presets.frameworks import preset_purpose  # noqa: PLC0415

    values = config.model_dump(mode="json")
    return {"name": name, "purpose": preset_purpose(name), "config": values}


def _list(configs: dict[str, GuardConfig], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_describe(name, config) for name, config in configs.items()]))
        return
    from rich.console import Console  # noqa: PLC0415

    from halfguard.guard.presets.frameworks import FRAMEWORKS  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    console.print(_table(configs))
    console.print(
        f"halfguard presets NAME prints a preset; --for {'|'.join(FRAMEWORKS)} prints the change "
        "for a framework."
    )


def _table(configs: dict[str, GuardConfig]) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.guard.presets.frameworks import preset_purpose  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("preset", "for", "numbers"):
        table.add_column(head, overflow="fold")
    for name, config in configs.items():
        table.add_row(name, preset_purpose(name), _numbers(config))
    return table


def _numbers(config: GuardConfig) -> str:
    skip, scale = config.skip, config.scale
    parts: list[str] = [config.precision]
    if config.clip is not None:
        parts.append(f"clip {config.clip.max_norm:g}")
    if config.accumulate > 1:
        parts.append(f"accumulate {config.accumulate}")
    parts.append(f"scale {scale.init:.0f}, growth every {scale.growth_interval}")
    if skip.on_nonfinite == "retry_fp32":
        parts.append("retry in FP32")
    if skip.max_grad_norm is not None:
        parts.append(f"skip gradient norms above {skip.max_grad_norm:g}")
    if config.spike is not None:
        parts.append(f"skip spikes of {config.spike.sigma:g} sigma")
    if config.recovery is not None:
        parts.append(f"snapshot every {config.recovery.every}")
    parts.append(f"stop after {skip.max_consecutive} failed steps")
    return ", ".join(parts)
