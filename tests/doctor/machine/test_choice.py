"""Which precision is chosen for which device: the cards people asked about, and laws for all."""

from __future__ import annotations

import pytest

from halfguard.doctor.machine.abilities import abilities
from halfguard.doctor.machine.choice import choose
from halfguard.doctor.machine.hardware import find, of_processor
from halfguard.doctor.machine.hardware_table import table
from halfguard.records.machine import Precision, Processor

CHOICES: dict[str, Precision] = {
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


@pytest.mark.parametrize(("name", "precision"), CHOICES.items())
def test_the_cards_that_people_asked_about(name: str, precision: Precision) -> None:
    assert choose(find(name)).precision == precision


@pytest.mark.parametrize("card", table().cards, ids=lambda card: card.name)
def test_no_card_is_sent_into_an_emulated_or_faulty_format(card: object) -> None:
    hardware = find(getattr(card, "name"))  # noqa: B009  the parameter is an object to pytest
    choice = choose(hardware)
    if choice.precision == "bf16-mixed":
        assert hardware.bf16 == "native"
    if choice.precision == "fp16-mixed":
        assert hardware.fp16 == "native"
    assert choice.reasons


def test_p100_is_promised_little() -> None:
    choice = choose(find("P100"))
    assert "2x FP32" in choice.reasons[0]
    assert any("far less than 2x" in warning for warning in choice.warnings)


def test_a100_can_do_fp16_too_and_tf32_is_named() -> None:
    warnings = " ".join(choose(find("A100")).warnings)
    assert "fp16-mixed runs there as well" in warnings
    assert "TF32" in warnings


def test_an_m1_emulates_bf16_though_mps_accepts_it() -> None:
    assert any("M1 and M2 emulate" in reason for reason in choose(find("M1")).reasons)


def _speed(name: str, precision: Precision) -> float | None:
    return next(row.speed for row in abilities(find(name)) if row.precision == precision)


def test_speeds_are_those_of_the_data_sheets() -> None:
    assert _speed("T4", "fp16-mixed") == pytest.approx(65 / 8.1)
    assert _speed("T4", "bf16-mixed") is None
    assert _speed("A100", "bf16-mixed") == pytest.approx(16)
    assert _speed("MI100", "bf16-mixed") == pytest.approx(92.3 / 23.1)
    assert _speed("P100", "fp16-mixed") == pytest.approx(2, rel=0.02)


AMX = Processor(name="Xeon", cores=2, features=("amx_bf16", "avx512_bf16", "f16c"))
PLAIN = Processor(name="EPYC", cores=2, features=("f16c",))


@pytest.mark.parametrize(
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
    processor: Processor, bf16: float | None, expected: Precision
) -> None:
    speeds: dict[Precision, float] = {"fp32": 1.0, "fp16-mixed": 0.5}
    if bf16 is not None:
        speeds["bf16-mixed"] = bf16
    assert choose(of_processor(processor), speeds if bf16 else None).precision == expected


def test_what_each_precision_does_on_a_processor() -> None:
    how = {row.precision: row.how for row in abilities(of_processor(AMX))}
    assert how["bf16-mixed"] == "native (AMX-BF16, AVX512-BF16)"
    assert how["fp16-mixed"] == "converted to FP32 and back"
