"""Where a run took place: versions and hardware, the facts that change numbers. Never who or which host."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata

from halfguard.records import RunInfo


def environment(device: object = "cpu") -> dict[str, str]:
    """Facts about this machine; ``device`` is the one trained on, as torch names it."""
    facts = {
        "halfguard": _own_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
    }
    try:
        import torch  # noqa: PLC0415
    except (ImportError, OSError):  # absent, or its libraries do not load
        return facts
    facts["torch"] = torch.__version__
    if torch.version.cuda is not None:
        facts["cuda"] = torch.version.cuda
    if torch.version.hip is not None:
        facts["hip"] = torch.version.hip
    # Asked only for a CUDA device: the question itself starts CUDA in this process.
    if torch.device(str(device)).type == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(str(device))
        facts["device"] = f"{torch.cuda.get_device_name(str(device))} (sm_{major}{minor})"
    return facts


def _own_version() -> str:
    # Not halfguard.__version__: the package itself names every room, and rooms import downward only.
    try:
        return metadata.version("halfguard")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "not installed"


def run_info(config: Mapping[str, object], device: object = "cpu") -> RunInfo:
    """What ``Journal.begin`` writes: this moment, this configuration, this machine."""
    return RunInfo(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        config=dict(config),
        environment=environment(device),
    )
