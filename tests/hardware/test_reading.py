"""Machines that are elsewhere: read from their files and from what torch reports, and judged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfguard.diagnosis.machine.findings import has_kernels
from halfguard.diagnosis.machine.report import report_on_record
from halfguard.hardware.choice import FORMATS
from halfguard.hardware.lookup import load_table
from halfguard.hardware.reading import (
    read_devices,
    read_driver,
    read_machine,
    read_processor,
    read_torch,
)
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.machine import (
    Device,
    Machine,
    MachineReport,
    ParityRow,
    Processor,
    TorchBuild,
)
from tests.support.cases import each

GIGABYTE = 1024**3
CUDA_BUILD = TorchBuild(
    version="2.13.0+cu128",
    cuda="12.8",
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    default_scaler=True,
)
CPU_BUILD = TorchBuild(version="2.13.0+cpu", default_scaler=False)


def machine(
    *devices: Device, build: TorchBuild | None = CUDA_BUILD, driver: str | None = "NVIDIA 580.65.06"
) -> Machine:
    return Machine(
        system="Linux 6.8",
        processor=Processor(name="Xeon", cores=8, memory=64.0, features=("f16c",)),
        driver=driver,
        torch=build,
        devices=devices,
    )


def card(name: str, target: str, kind: Any = "cuda") -> Device:
    return Device(kind=kind, name=name, target=target, memory=16.0)


def codes(report: MachineReport) -> list[str]:
    return [found.code for found in report.problems]


T4 = card("Tesla T4", "7.5")
A100 = card("NVIDIA A100-SXM4-80GB", "8.0")
GTX_1660 = card("NVIDIA GeForce GTX 1660 Ti", "7.5")
GTX_1080_TI = card("NVIDIA GeForce GTX 1080 Ti", "6.1")


def fake_torch(properties: list[Any], hip: str | None = None) -> Any:
    return SimpleNamespace(
        version=SimpleNamespace(hip=hip, cuda=None if hip else "12.8"),
        cuda=SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: len(properties),
            get_device_properties=lambda index: properties[index],
        ),
    )


def test_cuda_devices_are_read_from_their_properties() -> None:
    t4 = SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=15 * GIGABYTE)
    h100 = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=79 * GIGABYTE
    )
    assert read_devices(fake_torch([t4, h100])) == (
        Device(kind="cuda", index=0, name="Tesla T4", target="7.5", memory=15.0),
        Device(kind="cuda", index=1, name="NVIDIA H100 80GB HBM3", target="9.0", memory=79.0),
    )


def test_rocm_devices_are_known_by_their_architecture() -> None:
    found = SimpleNamespace(
        name="AMD Instinct MI250X",
        major=9,
        minor=0,
        gcnArchName="gfx90a:sramecc+:xnack-",
        total_memory=64 * GIGABYTE,
    )
    (device,) = read_devices(fake_torch([found], hip="6.2"))
    assert (device.kind, device.target, device.torch_type) == ("rocm", "gfx90a", "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without CUDA")
def test_this_machine_is_read_as_torch_sees_it() -> None:
    found = read_machine(torch)
    assert found.torch == read_torch(torch)
    assert found.torch.version == torch.__version__
    # The reading is the real thing: a scaler was made, and its warning kept from the user.
    assert found.torch.default_scaler is False
    assert torch.amp.GradScaler("cpu").is_enabled()
    assert Machine.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("text", "name", "features"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu sse2 f16c avx2\n",
            "AMD EPYC 7763",
            ("f16c",),
        ),
        (
            "model name\t: Intel(R) Xeon(R) 8480+\nflags\t\t: avx512_bf16 amx_bf16 avx512_fp16 f16c\n",
            "Intel(R) Xeon(R) 8480+",
            ("amx_bf16", "avx512_bf16", "avx512_fp16", "f16c"),
        ),
        (
            "Features\t: fp asimd fphp asimdhp i8mm bf16\nCPU part\t: 0xd40\n",
            "",
            ("bf16", "asimdhp"),
        ),
    ],
    ids=["epyc", "sapphire-rapids", "neoverse"],
)
def test_processors(tmp_path: Path, text: str, name: str, features: tuple[str, ...]) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    found = read_processor(tmp_path)
    assert found.features == features
    assert found.name == name or (not name and found.name)


def test_drivers(tmp_path: Path) -> None:
    assert read_driver(tmp_path) is None
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.8.5\n")
    assert read_driver(tmp_path) == "amdgpu 6.8.5"
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023\n"
    )
    assert read_driver(tmp_path) == "NVIDIA 535.154.05"


def test_emulated_bf16_is_found_and_fp16_is_the_cure() -> None:
    broken = report_on_record(machine(T4), "bf16-mixed")
    assert codes(broken) == ["HG406"]
    (found,) = broken.problems
    assert "Use fp16-mixed" in found.cure
    assert "is_bf16_supported() returns True" in found.why
    assert codes(report_on_record(machine(T4), "fp16-mixed")) == []
    assert codes(report_on_record(machine(A100), "bf16-mixed")) == []


def test_a_card_with_faulty_fp16_is_found_and_fp32_is_the_cure() -> None:
    broken = report_on_record(machine(GTX_1660), "fp16-mixed")
    assert codes(broken) == ["HD003"]
    (found,) = broken.problems
    assert (found.severity, found.cure.split(".")[0]) == ("error", "Use fp32")
    assert broken.choice.precision == "fp32"
    assert codes(report_on_record(machine(GTX_1660), "fp32")) == []
    assert codes(report_on_record(machine(T4), "fp16-mixed")) == []
    # Nobody asked, but whoever owns this card must hear of it.
    assert codes(report_on_record(machine(GTX_1660))) == ["HD003"]


def test_no_gain_is_told_where_there_is_none() -> None:
    old = TorchBuild(version="2.7.0+cu118", architectures=("sm_61",), default_scaler=True)
    broken = report_on_record(machine(GTX_1080_TI, build=old), "fp16-mixed")
    assert codes(broken) == ["HD006"]
    (found,) = broken.problems
    assert found.cure.startswith("Use fp32")
    assert "only saved activations shrink" in found.why
    assert codes(report_on_record(machine(GTX_1080_TI, build=old), "fp32")) == []
    v100 = card("Tesla V100-SXM2-16GB", "7.0")
    build = TorchBuild(version="2.7.0", architectures=("sm_70",), default_scaler=True)
    assert codes(report_on_record(machine(v100, build=build), "fp16-mixed")) == []


def test_a_measured_loss_of_speed_is_told() -> None:
    here = machine(build=TorchBuild(version="2.13", default_scaler=True), driver=None)
    speeds: dict[MixedPrecisionName, float] = {"fp32": 1.0, "fp16-mixed": 0.4, "bf16-mixed": 3.0}
    broken = report_on_record(here, "fp16-mixed", speeds)
    assert codes(broken) == ["HD004"]
    assert "Train in bf16-mixed" in broken.problems[0].cure
    assert codes(report_on_record(here, "bf16-mixed", speeds)) == []


@pytest.mark.parametrize(
    ("devices", "kind"),
    [((), "cpu"), ((Device(kind="mps", name="Apple M3"),), "mps")],
    ids=["cpu", "mps"],
)
def test_a_scaler_that_turns_itself_off_is_found(devices: tuple[Device, ...], kind: str) -> None:
    broken = report_on_record(machine(*devices, build=CPU_BUILD, driver=None), "fp16-mixed")
    assert codes(broken) == ["HD113"]
    assert f'torch.amp.GradScaler("{kind}")' in broken.problems[0].cure
    assert codes(report_on_record(machine(A100), "fp16-mixed")) == []
    assert codes(report_on_record(machine(build=CPU_BUILD, driver=None), "bf16-mixed")) == []


def test_every_kind_of_card_in_a_machine_is_judged() -> None:
    report = report_on_record(machine(A100, GTX_1660, GTX_1660), "fp16-mixed")
    assert codes(report) == ["HD003"]
    assert "1660 Ti" in report.problems[0].message


def test_a_machine_without_a_gpu_has_notes_but_no_problems() -> None:
    report = report_on_record(machine(build=CPU_BUILD, driver=None))
    assert codes(report) == []
    assert [found.code for found in report.findings] == ["HD113"]


@pytest.mark.parametrize(
    ("build", "cure"),
    [
        (CPU_BUILD, "Install a build of torch for your GPU"),
        (CUDA_BUILD, "Update the driver"),
        (None, "pip install 'halfguard[torch]'"),
    ],
    ids=["cpu-build", "old-driver", "no-torch"],
)
def test_torch_that_does_not_fit_the_machine(build: TorchBuild | None, cure: str) -> None:
    found = report_on_record(machine(build=build)).problems[0]
    assert found.code == "HD005"
    assert cure in found.cure


def test_a_build_without_kernels_for_the_card_is_found() -> None:
    p100 = card("Tesla P100-PCIE-16GB", "6.0")
    broken = report_on_record(machine(p100), "fp32")
    assert codes(broken) == ["HD007"]
    old = TorchBuild(version="2.7.1+cu126", architectures=("sm_60", "sm_75"), default_scaler=True)
    assert codes(report_on_record(machine(p100, build=old), "fp32")) == []


@each(
    ("target", "architectures", "runs"),
    [
        ("8.6", ("sm_80",), True),  # binaries run on later minor versions
        ("8.0", ("sm_86",), False),
        ("9.0", ("sm_80", "sm_86"), False),
        ("9.0", ("sm_80", "compute_80"), True),  # PTX is compiled for what comes later
        ("9.0", ("sm_90a",), True),
        ("10.0", ("sm_90a",), False),
        ("12.0", ("sm_120",), True),
        ("12.0", ("sm_100",), False),
        ("7.5", (), True),  # nothing is known
    ],
)
def test_kernels(target: str, architectures: tuple[str, ...], runs: bool) -> None:
    assert has_kernels(card("x", target), architectures) is runs


def test_kernels_on_rocm_are_for_one_architecture() -> None:
    assert has_kernels(card("x", "gfx90a", "rocm"), ("gfx908", "gfx90a"))
    assert not has_kernels(card("x", "gfx1030", "rocm"), ("gfx90a",))


def test_a_failed_parity_row_is_an_error_in_the_format_that_was_asked_for() -> None:
    wrong = ParityRow(
        operation="convolution",
        precision="FP16",
        size="[16, 64, 56, 56]",
        error=float("inf"),
        detail="12 of 100 elements are NaN or Inf",
    )
    broken = report_on_record(machine(A100), "fp16-mixed", parity=[wrong])
    assert codes(broken) == ["HD008"]
    assert "Do not train in FP16 here" in broken.problems[0].cure
    assert codes(report_on_record(machine(A100), "bf16-mixed", parity=[wrong])) == []
    assert MachineReport.from_json(broken.to_json()) == broken


SPEED = st.sampled_from([0.1, 0.5, 0.79, 0.8, 1.0, 1.09, 1.1, 2.0, 8.0])
ELSEWHERE = [
    *(card(name, "") for row in load_table().generations for name in row.cards),
    card("NVIDIA Orin", "8.7"),
    card("Xavier", "7.2"),
    card("AMD Radeon Graphics", "gfx1151", "rocm"),
]


@given(
    device=st.sampled_from([None, *ELSEWHERE]),
    fp16=SPEED,
    bf16=SPEED,
    failed=st.sets(st.sampled_from(["FP32", "FP16", "BF16"])),
)
def test_the_choice_never_contradicts_a_finding_beside_it(
    device: Device | None, fp16: float, bf16: float, failed: set[str]
) -> None:
    speeds: dict[MixedPrecisionName, float] = {"fp32": 1.0, "fp16-mixed": fp16, "bf16-mixed": bf16}
    rows = [
        ParityRow(operation="matmul", precision=name, size="x", error=float("nan"))
        for name in failed
    ]
    build = TorchBuild(version="2.13", default_scaler=True)
    here = machine(*([] if device is None else [device]), build=build, driver=None)
    report = report_on_record(here, None, speeds, rows)
    chosen = report.choice.precision
    about = {f.subject for f in report.findings if f.code in ("HG406", "HD003", "HD004", "HD006")}
    assert chosen not in about
    assert chosen == "fp32" or FORMATS[chosen] not in failed
    for found in report.findings:
        if found.code in ("HG406", "HD004"):
            assert chosen in found.cure


@given(
    name=st.text(max_size=30),
    reported=st.sampled_from(
        [("cuda", "6.0"), ("cuda", "7.5"), ("cuda", "99.9"), ("rocm", "gfx90a"), ("xpu", None)]
    ),
    asked=st.sampled_from([None, "fp32", "fp16-mixed", "bf16-mixed"]),
)
def test_every_machine_gets_an_answer(
    name: str, reported: tuple[Any, str | None], asked: MixedPrecisionName | None
) -> None:
    device = Device(kind=reported[0], name=name, target=reported[1])
    report = report_on_record(machine(device), asked)
    assert report.choice.precision in ("fp32", "fp16-mixed", "bf16-mixed")
    assert report.choice.reasons
    assert all(found.cure and found.why for found in report.findings)
