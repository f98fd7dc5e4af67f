"""The hardware table: that its rows agree with each other, with its page, and how cards are found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import UsageError
from halfguard.hardware.choice import choose
from halfguard.hardware.lookup import (
    Generation,
    ProcessorFeature,
    Table,
    find_card,
    load_table,
    look_up_device,
    look_up_processor,
    model_name,
)
from halfguard.records.machine import Device, Processor
from tests.support.cases import each

PAGE = Path(__file__).parents[2] / "docs/reference/hardware.md"
# Which compute capabilities belong to a name, from NVIDIA's list of CUDA GPUs.
CAPABILITIES = {
    "Pascal": {"6.0", "6.1"},
    "Volta": {"7.0"},
    "Turing": {"7.5"},
    "Ampere": {"8.0", "8.6"},
    "Ada": {"8.9"},
    "Hopper": {"9.0"},
    "Blackwell": {"10.0", "10.3", "12.0", "12.1"},
}
TU11X = "Turing without tensor cores (TU116, TU117)"


def citing(rows: Table) -> list[Generation | ProcessorFeature]:
    """Every row that must name a document."""
    return [*rows.generations, *rows.processor_features]


def contradictions(rows: Table) -> Iterator[str]:
    """Everything in the table that cannot be true at once."""
    for row in citing(rows):
        yield from (f"{row.name}: no document {s}" for s in row.sources if s not in rows.documents)
        if not row.sources:
            yield f"{row.name}: read nowhere"
    for generation in rows.generations:
        yield from _in_generation(generation)
        yield from _in_names(generation, rows)
    shared = Counter(target for row in rows.generations for target in row.targets)
    yield from (f"{t}: two generations" for t, n in shared.items() if n > 1 and t != "7.5")


def _in_generation(row: Generation) -> Iterator[str]:
    if row.vendor == "NVIDIA":
        allowed = CAPABILITIES[row.name.split()[0]]
        for target in row.targets:
            version = tuple(map(int, target.split(".")))
            if target not in allowed:
                yield f"{row.name}: {target} is another architecture"
            if (row.bf16 == "native") != (version >= (8, 0)):
                yield f"{row.name}: BF16 is native from 8.0 on"
            if row.matrix and version < (7, 0):
                yield f"{row.name}: tensor cores came with 7.0"
    if row.vendor == "AMD" and (row.bf16 == "native") != row.matrix:
        yield f"{row.name}: AMD's BF16 came with its matrix units"
    if row.fp16 != "native" and row.matrix:
        yield f"{row.name}: FP16 is slow or faulty only without tensor cores"


def _in_names(row: Generation, rows: Table) -> Iterator[str]:
    """Every example is found by a pattern of its generation alone; every pattern finds an example."""
    models = {model_name(card) for card in row.cards}
    for pattern in row.patterns:
        if not any(re.fullmatch(pattern, model) for model in models):
            yield f"{row.name}: no example of {pattern}"
    for other in rows.generations:
        for model in models:
            named = any(re.fullmatch(pattern, model) for pattern in other.patterns)
            if named != (other.name == row.name):
                yield f"{model} of {row.name}: {'also' if named else 'not'} found in {other.name}"


def test_the_table_does_not_contradict_itself() -> None:
    rows = load_table()
    assert list(contradictions(rows)) == []
    cited = {source for row in citing(rows) for source in row.sources}
    assert cited == set(rows.documents)
    assert {row.vendor for row in rows.generations} == {"NVIDIA", "AMD", "Apple", "Intel"}


@each(
    ("name", "changes", "said"),
    [
        ("Turing", {"bf16": "native"}, "BF16 is native from 8.0 on"),
        ("Ampere", {"bf16": "emulated"}, "BF16 is native from 8.0 on"),
        ("Pascal", {"matrix": True}, "tensor cores came with 7.0"),
        (TU11X, {"matrix": True}, "slow or faulty only without tensor cores"),
        ("Volta", {"targets": ("8.0",)}, "another architecture"),
        ("RDNA 3", {"targets": ("gfx1030",)}, "two generations"),
        ("RDNA 3", {"matrix": False}, "AMD's BF16 came with"),
        ("Ada Lovelace", {"sources": ("hearsay",)}, "no document hearsay"),
        ("Ada Lovelace", {"sources": ()}, "read nowhere"),
        ("Turing", {"cards": ("GeForce GTX 1650",)}, f"also found in {TU11X}"),
        ("Turing", {"cards": ("GeForce RTX 3090",)}, "not found in Turing"),
        ("Turing", {"patterns": ("t 4", "t 5")}, "no example of t 5"),
    ],
)
def test_a_contradiction_is_found(name: str, changes: dict[str, object], said: str) -> None:
    rows = load_table()
    planted = tuple(
        row.model_copy(update=changes) if row.name == name else row for row in rows.generations
    )
    found = contradictions(rows.model_copy(update={"generations": planted}))
    assert any(said in line for line in found)


def test_the_page_has_the_rows_of_the_table() -> None:
    written = [
        line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\||\d+\. ", line)
    ]
    assert [line for line in written if not line.startswith("|-")] == list(page_lines(load_table()))


# As people, torch and data sheets write them.
NAMES = {
    "Pascal (GP100)": ["Tesla P100-PCIE-16GB", "p100 sxm2"],
    "Pascal": ["1080ti", "GTX 1060 3GB", "GT 1030", "NVIDIA GeForce MX350", "Quadro P4000"],
    "Volta": ["Tesla V100-SXM3-32GB", "V100", "Tesla V100-DGXS-16GB", "Tesla V100S-PCIE-32GB"],
    "Turing": [
        "titan rtx",
        "NVIDIA TITAN RTX",
        "t4",
        "2080 Ti",
        "RTX 2060 laptop",
        "Quadro RTX 3000",
        "Quadro RTX 5000 with Max-Q Design",
        "RTX 8000",
    ],
    TU11X: [
        "NVIDIA GeForce GTX 1650 with Max-Q Design",
        "GTX 1650 Ti",
        "1660 super laptop",
        "NVIDIA T1000 8GB",
    ],
    "Ampere (GA100)": [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A100 80GB PCIe",
        "A100 PCI-E 40 GB",
        "A100 80G",
        "A100-SXM-64GB",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    ],
    "Ampere": [
        "rtx3090ti",
        "3070 ti",
        "RTX 3090 Founders Edition",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "RTX 3080 12GB",
        "NVIDIA GeForce RTX 2050",  # by its number Turing's
        "A10G 24GB",  # no size of 10 GB
        "A6000",
        "NVIDIA RTX A4500",
    ],
    "Ada Lovelace": [
        "4090",
        "NVIDIA GeForce RTX 4090 D",
        "RTX 4060 Ti 16GB",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA RTX 4000 SFF Ada Generation",
    ],
    "Hopper": ["NVIDIA H100 80GB HBM3", "H100 SXM5", "NVIDIA H200 NVL", "NVIDIA GH200 480GB"],
    "Blackwell (data centre)": ["NVIDIA B200"],
    "Blackwell (RTX)": ["RTX PRO 6000", "NVIDIA RTX PRO 4500 Blackwell", "5090"],
    "CDNA 2": ["AMD Instinct MI250X"],
    "CDNA 3": ["MI300X OAM"],
    "RDNA 2": ["6800 XT"],
    "RDNA 3": ["AMD Radeon RX 7900 XTX", "7900 XTX"],
    "Xe-HPG": ["Intel(R) Arc(TM) A770 Graphics"],
    "Xe-HPC": ["Intel(R) Data Center GPU Max 1550"],
    "Apple M1 and M2": ["m1 max", "M2 Pro", "M2 Max 96GB"],
    "Apple M3 and M4": ["M4"],
}


def test_cards_are_found_by_any_of_their_names() -> None:
    for generation, names in NAMES.items():
        for name in names:
            found = find_card(name)
            assert (found.generation, found.name) == (generation, name)


def test_a_card_names_the_documents_of_its_generation() -> None:
    assert find_card("GTX 1660").source == "PyTorch issues, ultralytics, torch 2.13.0"


def test_a_name_of_two_cards_is_answered_with_both() -> None:
    for number in ("3000", "4000", "5000", "6000"):
        both = [f"Quadro RTX {number}", f"RTX {number} Ada"]
        assert [find_card(name).generation for name in both] == ["Turing", "Ada Lovelace"]
        with pytest.raises(UsageError, match=f"two cards: {', '.join(both)}"):
            find_card(f"NVIDIA RTX {number}")
    here = look_up_device(Device(kind="cuda", name="NVIDIA RTX 6000", target="8.9"))
    assert here.generation == "Ada Lovelace"


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    for name, close in {"titan": "TITAN RTX", "rtx 3900": "3090 Ti", "A101": "A10"}.items():
        with pytest.raises(UsageError) as raised:
            find_card(name)
        assert close in raised.value.cure


def test_what_names_no_card_finds_none() -> None:
    for name in ("", "banana", "GTX", "RTX", "16", "80GB", "gpu"):
        with pytest.raises(UsageError):
            find_card(name)


def test_a_card_of_one_vendor_is_not_found_among_those_of_another() -> None:
    for name in ("Tesla M4", "NVIDIA Tesla M6", "Quadro M4", "GeForce 6800", "Radeon 4090"):
        with pytest.raises(UsageError) as raised:
            find_card(name)
        others = {"Apple", "Radeon"} - {name.split(maxsplit=1)[0]}
        assert not any(f"{other} " in raised.value.cure for other in others)
    with pytest.raises(UsageError):
        find_card("Apple A100")


def test_whose_a_device_is_follows_from_what_runs_it() -> None:
    old = look_up_device(Device(kind="cuda", name="Tesla M4", target="5.2"))
    assert (old.vendor, old.bf16, old.fp16) == ("NVIDIA", "emulated", "unknown")
    assert look_up_device(Device(kind="cuda", name="M4")).vendor == "NVIDIA"
    assert look_up_device(Device(kind="mps", name="M4")).generation == "Apple M3 and M4"
    assert (find_card("M4").vendor, find_card("6800 XT").vendor) == ("Apple", "AMD")


def test_a_device_is_known_by_its_capability_if_not_by_name() -> None:
    new = Device(kind="cuda", name="NVIDIA Next 1", target="8.6", memory=20.0)
    assert (look_up_device(new).bf16, look_up_device(new).memory) == ("native", 20.0)
    amd = Device(kind="rocm", name="AMD Next", target="gfx90a:sramecc+:xnack-")
    assert look_up_device(amd).generation == "CDNA 2"
    nobody = look_up_device(Device(kind="cuda", name="NVIDIA Next 2", target="99.0"))
    assert (nobody.fp16, nobody.bf16) == ("unknown", "unknown")


def test_a_target_goes_before_a_name_that_contradicts_it() -> None:
    def generation(name: str, target: str) -> str:
        return look_up_device(Device(kind="cuda", name=name, target=target)).generation

    assert generation("NVIDIA GeForce RTX 2050", "8.6") == "Ampere"
    assert generation("NVIDIA GeForce RTX 2070 SUPER", "8.6") == "Ampere"
    assert generation("NVIDIA GeForce RTX 2070 SUPER", "99.0") == "Turing"  # says nothing
    # Two generations share this one, and the name tells them apart.
    assert generation("NVIDIA GeForce GTX 1650", "7.5") == TU11X
    assert generation("NVIDIA Next", "7.5") == "Turing"


@given(row=st.sampled_from(load_table().generations), size=st.integers(1, 300))
def test_a_card_is_the_same_under_every_target_and_size(row: Generation, size: int) -> None:
    kinds = {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "mps", "Intel": "xpu"}
    for card in row.cards:
        assert find_card(f"{card} {size}GB").generation == row.name
        for target in row.targets or (None,):
            device = {"kind": kinds[row.vendor], "name": card, "target": target}
            assert look_up_device(Device.model_validate(device)) == find_card(card)


def test_processors_are_known_by_their_flags() -> None:
    new = Processor(name="Xeon", cores=2, features=("amx_bf16", "avx512_fp16", "f16c"))
    old = Processor(name="Xeon", cores=2, features=("f16c",))
    assert (look_up_processor(new).fp16, look_up_processor(new).bf16) == ("native", "native")
    assert (look_up_processor(old).fp16, look_up_processor(old).bf16) == ("emulated", "emulated")


def page_lines(table: Table) -> Iterator[str]:
    """Every line of the page that is data."""
    numbers = {key: str(number) for number, key in enumerate(table.documents, 1)}
    yield _row(["generation", "target", "examples", "FP16", "BF16", "matrix", "choose", "from"])
    for row in table.generations:
        yield _row(
            [
                (row.name if row.name.startswith(row.vendor) else f"{row.vendor} {row.name}")
                + "*" * row.inferred,
                ", ".join(row.targets),
                ", ".join(row.cards),
                row.fp16,
                row.bf16,
                _yes(row.matrix),
                choose(table.hardware(row, row.name)).precision,
                ", ".join(numbers[key] for key in row.sources),
            ]
        )
    yield _row(["flag", "name", "format", "arithmetic", "from"])
    for flag in table.processor_features:
        sources = ", ".join(numbers[key] for key in flag.sources)
        yield _row([f"`{flag.flag}`", flag.name, flag.format, _yes(flag.arithmetic), sources])
    for number, document in enumerate(table.documents.values(), 1):
        yield f"{number}. {document.name}: {document.where}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
