"""The environment of a run: versions and hardware, because they change numbers. No user or host names."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime

from halfguard.records import RunInfo
from halfguard.records.machine import installed_version


def collect_environment(device: object = "cpu") -> dict[str, str]:
    """Return versions and hardware of this machine; ``device`` is the training device, as torch names it."""
    facts = {
        # Not halfguard.__version__: the top package may import everything, so this package may not import it.
        "halfguard": installed_version("halfguard") or "not installed",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
    }
    try:
        import torch  # noqa: PLC0415
    except (ImportError, OSError):  # not installed, or its libraries do not load
        return facts
    facts["torch"] = torch.__version__
    if torch.version.cuda is not None:
        facts["cuda"] = torch.version.cuda
    if torch.version.hip is not None:
        facts["hip"] = torch.version.hip
    # Only for a CUDA device: the call itself initializes CUDA in this process.
    if torch.device(str(device)).type == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(str(device))
        facts["device"] = f"{torch.cuda.get_device_name(str(device))} (sm_{major}{minor})"
    return facts


def make_run_info(config: Mapping[str, object], device: object = "cpu", entry: str = "") -> RunInfo:
    """Return the content of ``run.json``: start time, configuration and environment."""
    return RunInfo(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        config=dict(config),
        environment=collect_environment(device),
        entry=entry,
    )
