"""The facts about a device and its software that a record names: nothing about the user."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import torch

from halfguard.hardware.reading import GIGABYTE
from halfguard.records.machine import Machine


def device_name(device: torch.device, machine: Machine) -> str:
    """Return the name of the card or of the processor."""
    if device.type == "cpu":
        return machine.processor.name
    module = torch.get_device_module(device)
    if hasattr(module, "get_device_name"):
        return str(module.get_device_name(device))
    return next((found.name for found in machine.devices), device.type)


def count_devices(device: torch.device) -> int:
    """Return how many devices of this kind the machine has."""
    return 1 if device.type == "cpu" else int(torch.get_device_module(device).device_count())


def device_memory(device: torch.device, machine: Machine) -> float | None:
    """Return the GB of the device."""
    if device.type == "cpu":
        return machine.processor.memory
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / GIGABYTE
    return next((found.memory for found in machine.devices), None)


def read_system() -> str:
    """Return the operating system and the architecture."""
    return f"{platform.system()} {platform.machine()}"


def read_versions() -> dict[str, str]:
    """Return the versions of everything that takes part."""
    cuda: Any = torch.cuda
    cudnn: Any = torch.backends.cudnn
    nccl = ".".join(map(str, cuda.nccl.version())) if cuda.is_available() else None
    found = {
        "halfguard": metadata.version("halfguard"),
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda,
        "ROCm": torch.version.hip,
        "cuDNN": cudnn.version() if cuda.is_available() else None,
        "NCCL": nccl,
    }
    return {name: str(version) for name, version in found.items() if version is not None}
