"""``halfguard mismatch``: why rollout and trainer disagree about the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from halfguard.cli.pages import check_folders, show_page
from halfguard.errors import UsageError


def mismatch(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder or name of a transformers model.")
    ],
    rollouts: Annotated[
        Path, typer.Argument(metavar="ROLLOUTS", help="JSONL file with one completion per line.")
    ],
    adapter: Annotated[str | None, typer.Option(help="Folder of a PEFT adapter.")] = None,
    previous: Annotated[
        str | None, typer.Option(help="Older weights that may have generated the rollout.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.", min=1e-3)] = 1.0,
    rollout_dtype: Annotated[str, typer.Option(help="Precision of the rollout.")] = "bfloat16",
    trainer_dtype: Annotated[str, typer.Option(help="Precision of the trainer.")] = "bfloat16",
    clip: Annotated[
        float, typer.Option(help="Ratios from 1 - CLIP to 1 + CLIP are inside the clip range.")
    ] = 0.1,
    most: Annotated[int, typer.Option(help="Number of completions to read.", min=1)] = 64,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    html: Annotated[Path | None, typer.Option(help="Save all results as one HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recompute the log-probabilities of recorded tokens, and report what rounding cannot explain.

    Exit code 0: rounding explains the difference; 1: it does not; 2: usage error.
    """
    check_folders(html=html)
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415
    from halfguard.report.mismatch import mismatch_page  # noqa: PLC0415

    with torch_needed("halfguard mismatch"):
        from halfguard.rollouts import mismatch as run  # noqa: PLC0415
        from halfguard.rollouts import read_rollouts  # noqa: PLC0415
    rows = read_rollouts(rollouts, most)
    found = run(
        _load(model, device, adapter),
        rows,
        previous=None if previous is None else _load(previous, device, adapter),
        temperature=temperature,
        rollout_dtype=rollout_dtype,
        trainer_dtype=trainer_dtype,
        clip=clip,
    )
    page = mismatch_page(found, rollouts.name)
    show_page(lambda _: page, found.to_json(), None, html, as_json=as_json)
    raise typer.Exit(1 if found.causes else 0)


def _load(name: str, device: str, adapter: str | None) -> Any:
    try:
        import transformers  # noqa: PLC0415

        library: Any = transformers
        model = library.AutoModelForCausalLM.from_pretrained(name, dtype="float32")
        if adapter is not None:
            import peft  # noqa: PLC0415

            model = peft.PeftModel.from_pretrained(model, adapter)
        return model.to(device).eval()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"halfguard mismatch needs {error.name}.", cure=f"pip install {error.name}"
        ) from error
    except (OSError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise UsageError(f"{name} cannot be loaded: {text}") from error
