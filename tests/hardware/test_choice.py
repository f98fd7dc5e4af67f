"""Which precision is chosen for which device: the cards people asked about, and laws for all."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import halfguard as hg
from halfguard.diagnosis.machine.report import list_abilities
from halfguard.errors import ConfigError
from halfguard.hardware.choice import choose, choose_precision
from halfguard.hardware.lookup import find_card, load_table, look_up_device, look_up_processor
from halfguard.hardware.reading import GIGABYTE, read_processor
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.machine import Choice, Device, ParityRow, Processor
from tests.support.cases import each

CHOICES: dict[str, MixedPrecisionName] = {
    "TITAN RTX": "fp16-mixed",
    "Tesla T4": "fp16-mixed",
    "V100": "fp16-mixed",
    "P100": "fp16-mixed",
    "A100": "bf16-mixed",
    "H100": "bf16-mixed",
    "RTX 4090": "bf16-mixed",
    "GTX 1080 Ti": "fp32",
    "GTX 1660": "fp32",
    "GTX 1650": "fp32",
    "MI300X": "bf16-mixed",
    "RX 6900 XT": "fp16-mixed",
    "Apple M1": "fp16-mixed",
    "Apple M4 Max": "bf16-mixed",
}


@each(("name", "precision"), CHOICES.items())
def test_the_cards_that_people_asked_about(name: str, precision: MixedPrecisionName) -> None:
    assert choose(find_card(name)).precision == precision


def test_no_generation_is_sent_into_an_emulated_or_faulty_format() -> None:
    for row in load_table().generations:
        choice = choose(load_table().hardware(row, row.name))
        assert choice.reasons
        assert choice.precision != "bf16-mixed" or row.bf16 == "native"
        assert choice.precision != "fp16-mixed" or row.fp16 == "native"


def test_p100_is_promised_little() -> None:
    choice = choose(find_card("P100"))
    assert "2x FP32" in choice.reasons[0]
    assert any("far below 2x" in warning for warning in choice.warnings)


def test_a100_can_do_fp16_too_and_tf32_is_named() -> None:
    warnings = " ".join(choose(find_card("A100")).warnings)
    assert "fp16-mixed runs on these units as well" in warnings
    assert "TF32" in warnings


def test_an_m1_emulates_bf16_though_mps_accepts_it() -> None:
    assert any("M1 and M2 emulate" in reason for reason in choose(find_card("M1")).reasons)


def test_only_what_was_measured_has_a_speed() -> None:
    assert {row.speed for row in list_abilities(find_card("T4"))} == {None}
    assert [row.speed for row in list_abilities(find_card("T4"), timed(7, 0.3))] == [1.0, 7, 0.3]


AMX = Processor(name="Xeon", cores=2, features=("amx_bf16", "avx512_bf16", "f16c"))
PLAIN = Processor(name="EPYC", cores=2, features=("f16c",))


@each(
    ("processor", "bf16", "expected"),
    [
        (AMX, 6.4, "bf16-mixed"),
        (AMX, None, "bf16-mixed"),  # not measured: the flags decide
        (AMX, 0.9, "fp32"),  # measured: the clock decides
        (PLAIN, 0.2, "fp32"),
        (PLAIN, None, "fp32"),
        (PLAIN, 1.5, "bf16-mixed"),
    ],
)
def test_on_a_processor_the_measurement_decides(
    processor: Processor, bf16: float | None, expected: MixedPrecisionName
) -> None:
    speeds: dict[MixedPrecisionName, float] = {"fp32": 1.0, "fp16-mixed": 0.5}
    if bf16 is not None:
        speeds["bf16-mixed"] = bf16
    assert choose(look_up_processor(processor), speeds if bf16 else None).precision == expected


def wrong(*formats: str) -> list[ParityRow]:
    return [
        ParityRow(operation="matmul", precision=name, size="x", error=float("inf"))
        for name in formats
    ]


def timed(fp16: float, bf16: float) -> dict[MixedPrecisionName, float]:
    return {"fp32": 1.0, "fp16-mixed": fp16, "bf16-mixed": bf16}


@each(
    ("name", "speeds", "failed", "expected"),
    [
        ("A100", timed(8, 8), (), "bf16-mixed"),
        ("A100", timed(8, 8), ("BF16",), "fp16-mixed"),
        ("A100", None, ("BF16",), "fp16-mixed"),  # the table speaks for FP16
        ("A100", timed(8, 8), ("FP16", "BF16"), "fp32"),
        ("A100", timed(8, 0.5), (), "fp16-mixed"),
        ("A100", timed(0.5, 0.9), (), "bf16-mixed"),  # no faster, but smaller
        ("RTX 3090", timed(0.5, 0.5), (), "fp32"),
        ("T4", timed(7, 0.3), ("FP16",), "fp32"),
        ("T4", timed(7, 1.3), ("FP16",), "fp32"),  # emulated BF16 is never advised on a GPU
        ("T4", timed(0.5, 1.3), (), "fp32"),
        ("GTX 1660", timed(2, 2), (), "fp32"),  # known to fail, whatever a probe says
        ("GTX 1080 Ti", timed(0.2, 0.2), (), "fp32"),
        ("Apple M4", timed(1, 1), (), "bf16-mixed"),
        ("Apple M4", timed(1.3, 0.4), (), "fp16-mixed"),
    ],
)
def test_what_was_measured_goes_before_the_table(
    name: str,
    speeds: dict[MixedPrecisionName, float] | None,
    failed: tuple[str, ...],
    expected: MixedPrecisionName,
) -> None:
    assert choose(find_card(name), speeds, wrong(*failed)).precision == expected


def test_the_reasons_say_what_was_measured() -> None:
    said = " ".join(choose(find_card("A100"), timed(8, 8), wrong("BF16")).reasons)
    assert "BF16 returns wrong results" in said
    assert "8x as fast" in said
    said = " ".join(choose(find_card("RTX 3090"), timed(0.5, 0.4)).reasons)
    assert "FP16 ran at 0.5x the speed of FP32" in said
    assert "BF16 ran at 0.4x" in said


def test_emulated_bf16_that_measures_fast_is_called_odd_and_is_no_reason() -> None:
    choice = choose(find_card("T4"), timed(0.5, 3))
    assert choice.precision == "fp32"
    (fast,) = [reason for reason in choice.reasons if reason.startswith("BF16")]
    assert "3x the speed of FP32, which is unexpected because it is emulated" in fast
    slow = " ".join(choose(find_card("T4"), timed(0.5, 0.3)).reasons)
    assert "BF16 ran at 0.3x" in slow
    assert "odd" not in slow


def test_a_format_that_fails_is_not_named_as_the_other_way() -> None:
    a100, old = find_card("A100"), find_card("GTX 1080 Ti")
    for speeds, failed in ((timed(8, 8), ("FP16",)), (timed(0.5, 8), ())):
        choice = choose(a100, speeds, wrong(*failed))
        assert choice.precision == "bf16-mixed"
        assert "fp16-mixed" not in " ".join(choice.warnings)
    assert "fp16-mixed" in " ".join(choose(old).warnings)
    assert not choose(old, None, wrong("FP16")).warnings


def test_where_fp32_itself_is_wrong_nothing_is_promised() -> None:
    for hardware in (find_card("A100"), look_up_processor(AMX)):
        choice = choose(hardware, timed(8, 8), wrong("FP32"))
        assert choice.precision == "fp32"
        assert "Do not train on this device" in choice.warnings[0]


def chosen_for(device: Device, speeds: dict[MixedPrecisionName, float] | None) -> Choice:
    return choose(look_up_device(device), speeds)


ORIN = Device(kind="cuda", name="NVIDIA Orin", target="8.7")
THOR = Device(kind="cuda", name="NVIDIA Thor", target="11.0")
STRIX = Device(kind="rocm", name="AMD Radeon Graphics", target="gfx1151")
XAVIER = Device(kind="cuda", name="Xavier", target="7.2")


@each(
    ("device", "speeds", "expected"),
    [
        (ORIN, timed(8, 8), "bf16-mixed"),
        (THOR, timed(8, 0.5), "fp16-mixed"),
        (STRIX, timed(2.5, 2.5), "bf16-mixed"),
        (STRIX, timed(8, 2), "fp16-mixed"),  # four times as fast is worth a scaler
        (ORIN, timed(1, 1), "fp32"),
        (XAVIER, timed(4, 1.2), "fp16-mixed"),  # torch itself says that BF16 is emulated
    ],
)
def test_a_gpu_that_is_not_in_the_table_is_judged_by_the_clock(
    device: Device, speeds: dict[MixedPrecisionName, float], expected: MixedPrecisionName
) -> None:
    choice = chosen_for(device, speeds)
    assert choice.precision == expected
    assert "not in the table" in choice.reasons[0]
    assert "halfguard doctor" not in " ".join((*choice.reasons, *choice.warnings))


def test_an_unknown_gpu_on_which_nothing_was_measured_is_promised_nothing() -> None:
    choice = chosen_for(ORIN, None)
    assert choice.precision == "fp32"
    assert "was not measured" in choice.reasons[0]


@each(
    ("speeds", "failed", "expected"),
    [
        (timed(2.0, 0.4), (), "fp16-mixed"),
        (timed(6.0, 2.0), (), "fp16-mixed"),
        (timed(3.0, 2.0), (), "bf16-mixed"),
        (timed(0.5, 5.0), ("BF16",), "fp32"),
        (timed(2.0, 5.0), ("BF16",), "fp16-mixed"),
        (None, ("BF16",), "fp32"),
    ],
)
def test_a_processor_may_be_better_in_fp16(
    speeds: dict[MixedPrecisionName, float] | None,
    failed: tuple[str, ...],
    expected: MixedPrecisionName,
) -> None:
    choice = choose(look_up_processor(AMX), speeds, wrong(*failed))
    assert choice.precision == expected
    assert any(
        "CPU autocast runs softmax and norms in 16-bit precision" in line
        for line in choice.warnings
    )
    assert any("GradScaler" in line for line in choice.warnings) == (expected == "fp16-mixed")


def test_what_each_precision_does_on_a_processor() -> None:
    how = {row.precision: row.how for row in list_abilities(look_up_processor(AMX))}
    assert how["bf16-mixed"] == "native (AMX-BF16, AVX512-BF16)"
    assert how["fp16-mixed"] == "converted to FP32 and back"


# ``precision: auto`` chooses what the doctor would, by the device that torch reports.


def torch_with(name: str, capability: str, memory: int = 16) -> Any:
    major, minor = map(int, capability.split("."))
    found = SimpleNamespace(name=name, major=major, minor=minor, total_memory=memory * GIGABYTE)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda _index: found,
    )
    return SimpleNamespace(version=SimpleNamespace(hip=None, cuda="12.8"), cuda=cuda)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "8.0", "bf16-mixed"),
        ("NVIDIA H100 80GB HBM3", "9.0", "bf16-mixed"),
        ("Tesla T4", "7.5", "fp16-mixed"),  # is_bf16_supported() is True there: it counts emulation
        ("NVIDIA TITAN RTX", "7.5", "fp16-mixed"),
        ("NVIDIA GeForce GTX 1660 Ti", "7.5", "fp32"),  # its FP16 convolutions are faulty
        ("NVIDIA GeForce GTX 1080 Ti", "6.1", "fp32"),  # its FP16 is 64 times slower
    ],
)
def test_auto_chooses_by_the_table(name: str, capability: str, expected: str) -> None:
    assert choose_precision(torch_with(name, capability)) == expected
    assert choose(find_card(name)).precision == expected


@pytest.mark.usefixtures("seed")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="about a machine without accelerator")
def test_a_configuration_holds_the_name_that_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    here = choose(look_up_processor(read_processor())).precision
    with caplog.at_level(logging.INFO, "halfguard"):
        assert hg.GuardConfig.load({"precision": "auto"}).precision == here
    assert f"precision: auto is {here} on" in caplog.text
    model = nn.Linear(2, 2)
    guard = hg.Guard(model, torch.optim.SGD(model.parameters()), {"precision": "auto"})
    assert guard.config.precision == here
    assert guard.config.model_dump()["precision"] == here


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision"):
        hg.GuardConfig.load({"precision": "automatic"})
