"""Read this machine into a record: devices, driver, processor, torch build. Facts only.

The torch module and the root folder are parameters, so that tests can read other machines. Nothing is moved
to a device.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

from halfguard.hardware.lookup import load_table
from halfguard.records.machine import Device, Machine, Processor, TorchBuild

GIGABYTE = 1024**3


def read_machine(torch: Any | None, root: Path = Path("/")) -> Machine:
    """Read this machine; ``torch`` is the module, or None if it is not installed."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=read_processor(root),
        driver=read_driver(root),
        torch=None if torch is None else read_torch(torch),
        devices=() if torch is None else read_devices(torch),
    )


def read_devices(torch: Any) -> tuple[Device, ...]:
    """Return every accelerator that torch finds; CUDA and ROCm share one interface."""
    if torch.cuda.is_available():
        kind = "rocm" if torch.version.hip is not None else "cuda"
        count = torch.cuda.device_count()
        return tuple(
            _cuda_device(torch.cuda.get_device_properties(i), i, kind) for i in range(count)
        )
    if torch.xpu.is_available():
        return tuple(
            Device(kind="xpu", index=i, name=found.name, memory=found.total_memory / GIGABYTE)
            for i in range(torch.xpu.device_count())
            for found in [torch.xpu.get_device_properties(i)]
        )
    if torch.backends.mps.is_available():
        return (Device(kind="mps", name=_sysctl("machdep.cpu.brand_string") or "Apple"),)
    return ()


def _cuda_device(properties: Any, index: int, kind: Any) -> Device:
    if kind == "rocm":  # gfx90a:sramecc+:xnack-
        target = str(properties.gcnArchName).split(":")[0]
    else:
        target = f"{properties.major}.{properties.minor}"
    memory = properties.total_memory / GIGABYTE
    return Device(kind=kind, index=index, name=properties.name, target=target, memory=memory)


def read_torch(torch: Any) -> TorchBuild:
    """Return the build, and whether ``GradScaler()`` stays enabled here: one is created to find out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default_scaler = torch.amp.GradScaler().is_enabled()
    return TorchBuild(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        architectures=tuple(torch.cuda.get_arch_list()),
        default_scaler=default_scaler,
    )


def read_driver(root: Path = Path("/")) -> str | None:
    """Return the NVIDIA or AMD driver of the kernel, or None."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        pass
    else:
        version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
        return f"NVIDIA {version[0]}" if version else "NVIDIA"
    try:
        return f"amdgpu {(root / 'sys/module/amdgpu/version').read_text().strip()}"
    except OSError:
        return None


def read_processor(root: Path = Path("/")) -> Processor:
    """Return the processor's name and its flags for 16-bit arithmetic."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    fallback = _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()
    return Processor(
        name=name[1].strip() if name else fallback,
        cores=os.cpu_count() or 1,
        memory=_memory(),
        features=tuple(row.flag for row in load_table().processor_features if row.flag in present),
    )


def _memory() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIGABYTE
    except (AttributeError, OSError, ValueError):  # not available on every system
        return None


def _sysctl(key: str) -> str | None:
    if platform.system() != "Darwin":
        return None
    command = ["/usr/sbin/sysctl", "-n", key]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return result.stdout.strip() or None
