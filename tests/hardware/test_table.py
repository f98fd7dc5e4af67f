"""The hardware table: what it covers, that its rows agree with each other, and how cards are found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import UsageError
from halfguard.hardware.lookup import find_card, look_up_device, look_up_processor
from halfguard.hardware.names import canonical_name, parse_name
from halfguard.hardware.table import (
    FIGURES,
    Card,
    FigureName,
    Figures,
    Generation,
    ProcessorFeature,
    Rule,
    Table,
    load_table,
)
from halfguard.records.machine import Device, Processor

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


AGREEMENT = 0.03  # of two documents that say the same


def citing(rows: Table) -> tuple[Card | Generation | ProcessorFeature | Rule, ...]:
    """Every row that must name a document."""
    return (*rows.cards, *rows.generations, *rows.processor_features, *rows.rules)


def contradictions(rows: Table) -> Iterator[str]:
    """Everything in the table that cannot be true at once."""
    for row in citing(rows):
        for source in row.sources:
            if source not in rows.documents:
                yield f"{row}: no document {source}"
        if not row.sources:
            yield f"{row}: read nowhere"
    for generation in rows.generations:
        yield from _in_generation(generation)
    shared = Counter(target for row in rows.generations for target in row.targets)
    yield from (f"{t}: two generations" for t, n in shared.items() if n > 1 and t != "7.5")
    keys = {row.key: row for row in rows.generations}
    for card in rows.cards:
        if card.generation not in keys:
            yield f"{card.name}: no generation {card.generation}"
        else:
            yield from _in_card(card, keys[card.generation], rows)
            yield from _by_pattern(card, rows)
    names = Counter(canonical_name(n) for card in rows.cards for n in {card.name, *card.aliases})
    yield from (f"{name}: named twice" for name, count in names.items() if count > 1)


def _in_generation(row: Generation) -> Iterator[str]:
    if row.vendor == "NVIDIA":
        allowed = CAPABILITIES[row.name.split()[0]]
        for target in row.targets:
            version = tuple(map(int, target.split(".")))
            if target not in allowed:
                yield f"{row.key}: {target} is another architecture"
            if (row.bf16 == "native") != (version >= (8, 0)):
                yield f"{row.key}: BF16 is native from 8.0 on"
            if row.tf32 != (version >= (8, 0)):
                yield f"{row.key}: TF32 came with 8.0"
            if row.matrix and version < (7, 0):
                yield f"{row.key}: tensor cores came with 7.0"
    elif row.tf32:
        yield f"{row.key}: TF32 is NVIDIA's"
    if row.vendor == "AMD" and (row.bf16 == "native") != row.matrix:
        yield f"{row.key}: AMD's BF16 came with its matrix units"
    if row.faulty_fp16 and row.matrix:
        yield f"{row.key}: the fault is of chips without tensor cores"
    if row.fp16_rate is not None and row.fp16_rate not in (1 / 64, 1, 2, 4):
        yield f"{row.key}: an FP16 rate of {row.fp16_rate}"


def _in_card(card: Card, generation: Generation, rows: Table) -> Iterator[str]:
    yield from _in_documents(card)
    yield from (line for rule in rows.rules for line in _in_rule(card, rule))
    figures = rows.figures(card)
    fp32, fp16, matrix, memory, bandwidth = (
        figures[name].value if name in figures else None for name in FIGURES
    )
    if matrix and not generation.matrix:
        yield f"{card.name}: matrix TFLOPS without matrix units"
    if matrix and matrix < max(fp16 or 0, 1.9 * (fp32 or 0)):
        yield f"{card.name}: matrix units slower than what they stand beside"
    if bandwidth is None or not 60 <= bandwidth <= 10_000:
        yield f"{card.name}: a bandwidth of {bandwidth}"
    if memory is None and generation.vendor != "Apple":
        yield f"{card.name}: no memory"
    if memory is not None and not 4 <= memory <= 512:
        yield f"{card.name}: a memory of {memory}"
    if fp32 is not None and not 2 <= fp32 <= 200:
        yield f"{card.name}: FP32 at {fp32} TFLOPS"
    size = re.search(r"(\d+)GB", card.name)
    if size and memory != float(size[1]):
        yield f"{card.name}: a memory of {memory}"


def _in_documents(card: Card) -> Iterator[str]:
    """Documents under ``read`` agree about every figure; those under ``otherwise`` do not."""
    for name in FIGURES:
        taken = card.figure(name)
        for document, value in _said(card.read, name):
            if taken is not None and abs(value / taken.value - 1) > AGREEMENT:
                yield f"{card.name}: {document} does not agree about {name}"
        for document, value in _said(card.otherwise, name):
            if taken is None or abs(value / taken.value - 1) <= AGREEMENT:
                yield f"{card.name}: {document} contradicts nothing about {name}"


def _said(figures: Mapping[str, Figures], name: FigureName) -> Iterator[tuple[str, float]]:
    for document, said in figures.items():
        value = getattr(said, name, None)
        if value is not None:
            yield document, value


def _in_rule(card: Card, rule: Rule) -> Iterator[str]:
    """A rule holds for the cards whose own figure was read."""
    fp32, matrix = card.figure("fp32"), card.figure("matrix")
    if rule.covers(card) and fp32 is not None and matrix is not None:
        rate = matrix.value / fp32.value
        if abs(rate / rule.matrix - 1) > AGREEMENT:
            yield f"{card.name}: matrix at {rate:.2f}x FP32, the rule says {rule.matrix}"


def _by_pattern(card: Card, rows: Table) -> Iterator[str]:
    for other in rows.generations:
        model = parse_name(card.name).model
        named = any(re.fullmatch(pattern, model) for pattern in other.patterns)
        if named and other.key != card.generation:
            yield f"{card.name}: its name is that of {other.key}"


def test_the_table_does_not_contradict_itself() -> None:
    assert list(contradictions(load_table())) == []


def _planted(**changes: object) -> Table:
    """The table with one card, generation or rule changed, picked by name, key or pattern."""
    rows = load_table()
    name = changes.pop("of")
    return rows.model_copy(
        update={
            "cards": tuple(
                c.model_copy(update=changes) if c.name == name else c for c in rows.cards
            ),
            "generations": tuple(
                g.model_copy(update=changes) if g.key == name else g for g in rows.generations
            ),
            "rules": tuple(
                r.model_copy(update=changes) if r.cards == name else r for r in rows.rules
            ),
        }
    )


def _read(**figures: float) -> dict[str, Figures]:
    return {"techpowerup": Figures(**figures)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"of": "turing", "bf16": "native"}, "BF16 is native from 8.0 on"),
        ({"of": "ampere", "bf16": "emulated"}, "BF16 is native from 8.0 on"),
        ({"of": "pascal", "matrix": True}, "tensor cores came with 7.0"),
        ({"of": "volta", "targets": ("8.0",)}, "another architecture"),
        ({"of": "rdna3", "targets": ("gfx1030",)}, "two generations"),
        ({"of": "GeForce RTX [345]0.*", "matrix": 4.0}, "the rule says 4"),
        ({"of": "TITAN Xp", "read": _read(matrix=100)}, "without matrix units"),
        (
            {"of": "A100 SXM4 80GB", "read": _read(fp32=19.5, matrix=19.5)},
            "slower than what they stand beside",
        ),
        ({"of": "A100 SXM4 80GB", "read": _read(memory=40)}, "a memory of 40"),
        ({"of": "L4", "read": _read(bandwidth=3)}, "a bandwidth of 3.0"),
        (
            {
                "of": "Tesla T4",
                "read": {**_read(bandwidth=320), "iguane": Figures(bandwidth=300)},
            },
            "iguane does not agree about bandwidth",
        ),
        ({"of": "L4", "otherwise": _read(bandwidth=301)}, "contradicts nothing about bandwidth"),
        ({"of": "A30", "read": {}}, "read nowhere"),
        ({"of": "Tesla T4", "aliases": ("TITAN RTX",)}, "named twice"),
        ({"of": "GeForce GTX 1660", "read": {"hearsay": Figures()}}, "no document hearsay"),
        ({"of": "ada", "sources": ("hearsay",)}, "no document hearsay"),
        ({"of": "GeForce GTX 1650", "generation": "turing"}, "its name is that of turing-tu11x"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value["of"]),
)
def test_a_contradiction_is_found(wrong: dict[str, object], said: str) -> None:
    assert any(said in line for line in contradictions(_planted(**wrong)))


def test_it_covers_what_people_have() -> None:
    asked_for = {"TITAN RTX", "Tesla T4", "Tesla P100 PCIe 16GB", "Apple M1", "Apple M4 Max"}
    names = {card.name for card in load_table().cards}
    assert asked_for | {"Tesla V100 SXM2 16GB", "A100 SXM4 80GB"} <= names
    assert len(names) >= 31
    assert {row.vendor for row in load_table().generations} == {"NVIDIA", "AMD", "Apple", "Intel"}
    used = {card.generation for card in load_table().cards}
    assert used == {row.key for row in load_table().generations}


def test_every_document_is_used() -> None:
    rows = load_table()
    assert {source for row in citing(rows) for source in row.sources} == set(rows.documents)


def test_every_figure_was_read_or_follows_from_what_was_read() -> None:
    rows = load_table()
    for card in rows.cards:
        figures = rows.figures(card)
        assert figures, card.name
        for name, figure in figures.items():
            was_read = {document for document, _ in _said(card.read, name)}
            assert (figure.checked == "read") == bool(was_read), f"{card.name}: {name}"
            assert was_read <= set(figure.documents)
            assert set(figure.documents) <= set(rows.documents)


@pytest.mark.parametrize(
    ("card", "name", "value", "checked"),
    [
        ("TITAN RTX", "matrix", 130.5, "read"),
        ("Tesla P100 SXM2 16GB", "fp16", 2 * 10.61, "computed"),
        ("GeForce RTX 3080", "matrix", 2 * 29.8, "computed"),
        ("GeForce RTX 4090", "matrix", 165.2, "read"),
        ("Radeon RX 9070 XT", "matrix", 4 * 48.66, "computed"),
    ],
)
def test_a_figure_says_what_it_rests_on(
    card: str, name: FigureName, value: float, checked: str
) -> None:
    rows = load_table()
    figure = rows.figures(next(row for row in rows.cards if row.name == card))[name]
    assert figure.value == pytest.approx(value, rel=1e-3)
    assert figure.checked == checked


@pytest.mark.parametrize("card", ["GeForce GTX 1080 Ti", "GeForce GTX 1660", "RTX A4000"])
def test_what_is_not_known_stays_empty(card: str) -> None:
    found = find_card(card)
    assert (found.fp16_tflops, found.matrix_tflops) == (None, None)


def test_a_card_names_the_documents_of_its_figures_and_of_its_generation() -> None:
    source = find_card("TITAN RTX").source
    for name in ("Tom's Hardware", "TechPowerUp GPU database", "CUDA programming guide"):
        assert name in source


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("titan rtx", "TITAN RTX"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("Tesla T4", "Tesla T4"),
        ("t4", "Tesla T4"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("a100", "A100 SXM4 80GB"),
        ("RTX 3090 Ti", "GeForce RTX 3090 Ti"),
        ("rtx3090ti", "GeForce RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("Tesla V100-SXM2-32GB", "Tesla V100 SXM2 32GB"),
        ("Tesla V100-PCIE-16GB", "Tesla V100 PCIe 16GB"),
        ("Tesla P100-PCIE-16GB", "Tesla P100 PCIe 16GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("AMD Instinct MI250X", "Instinct MI250X"),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
        ("Intel(R) Data Center GPU Max 1550", "Data Center GPU Max 1550"),
        ("m1 max", "Apple M1 Max"),
    ],
)
def test_cards_are_found_by_any_of_their_names(name: str, card: str) -> None:
    found = find_card(name)
    assert found.name == card
    assert found.bandwidth is not None


def test_every_name_in_the_table_finds_its_own_card() -> None:
    for card in load_table().cards:
        for name in (card.name, *card.aliases):
            assert find_card(name).name == card.name


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "Ampere"),
        ("NVIDIA GeForce GTX 1650 with Max-Q Design", "Turing without tensor cores (TU116, TU117)"),
        ("GTX 1650 Ti", "Turing without tensor cores (TU116, TU117)"),
        ("NVIDIA T1000 8GB", "Turing without tensor cores (TU116, TU117)"),
        ("RTX 2070 SUPER", "Turing"),
        ("NVIDIA GeForce RTX 4090 D", "Ada Lovelace"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "Ampere (GA100)"),
        ("AMD Radeon RX 6600 XT", "RDNA 2"),
        ("M2 Pro", "Apple M1 and M2"),
    ],
)
def test_a_card_of_a_known_family_has_abilities(name: str, generation: str) -> None:
    assert find_card(name).generation == generation


# A name for every pattern, as its maker writes it.
FAMILIES = (
    "GeForce GTX 1050 Ti",
    "GeForce GT 1030",
    "GeForce MX150",
    "Quadro P4000",
    "GeForce RTX 2070 SUPER",
    "GeForce RTX 2050",
    "Quadro RTX 4000",
    "GeForce GTX 1630",
    "Quadro T2000",
    "GeForce MX450",
    "GeForce RTX 3070 Ti",
    "RTX A4500",
    "GeForce RTX 4060 Ti 16GB",
    "RTX 4000 SFF Ada Generation",
    "GeForce RTX 5060 Ti",
    "RTX PRO 4500 Blackwell",
    "Radeon RX 6600 XT",
    "Radeon PRO W6800",
    "Radeon RX 7800 XT",
    "Radeon PRO W7900",
    "Radeon RX 9070 GRE",
    "Data Center GPU Max 1450",
    "Arc A380",
    "Arc B570",
    "Apple M2 Pro",
    "Apple M4 Pro",
    "Apple M5 Max",
)


@pytest.mark.parametrize(
    "pattern", [pattern for row in load_table().generations for pattern in row.patterns]
)
def test_every_pattern_matches_a_name(pattern: str) -> None:
    assert any(re.fullmatch(pattern, parse_name(name).model) for name in FAMILIES)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("Quadro P4000", "Pascal"),
        ("GT 1030", "Pascal"),
        ("NVIDIA GeForce MX350", "Pascal"),
        ("Quadro RTX 3000", "Turing"),
        ("NVIDIA GeForce RTX 2050", "Ampere"),  # by its number Turing's
        ("RTX 2060 laptop", "Turing"),
        ("Quadro RTX 5000 with Max-Q Design", "Turing"),
        ("NVIDIA RTX A4500", "Ampere"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "Ada Lovelace"),
        ("RTX 4060 Ti 16GB", "Ada Lovelace"),
        ("NVIDIA H200 NVL", "Hopper"),
        ("NVIDIA RTX PRO 4500 Blackwell", "Blackwell (RTX)"),
        ("3070 ti", "Ampere"),
        ("1660 super laptop", "Turing without tensor cores (TU116, TU117)"),
    ],
)
def test_families_that_people_have(name: str, generation: str) -> None:
    found = find_card(name)
    assert found.generation == generation
    assert (found.memory, found.bandwidth, found.fp32_tflops) == (None, None, None)
    assert "No figures: " in found.source


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("4090", "GeForce RTX 4090"),
        ("3090", "GeForce RTX 3090"),
        ("1080ti", "GeForce GTX 1080 Ti"),
        ("2080 Ti", "GeForce RTX 2080 Ti"),
        ("7900 XTX", "Radeon RX 7900 XTX"),
        ("H100 SXM5", "H100 SXM"),
        ("A100 SXM4", "A100 SXM4 80GB"),
        ("A100 80G", "A100 SXM4 80GB"),
        ("A100-SXM-40GB", "A100 SXM4 40GB"),
        ("A100 PCI-E 40 GB", "A100 PCIe 40GB"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
        ("RTX 3080 10GB", "GeForce RTX 3080"),
        ("H100 94GB", "H100 NVL"),
        ("A10G", "A10G"),  # no size of 10 GB
        ("A10G 24GB", "A10G"),
        ("RTX 3090 Founders Edition", "GeForce RTX 3090"),
        ("MI300X OAM", "Instinct MI300X"),
        ("M2 Max 96GB", "Apple M2 Max"),
    ],
)
def test_names_as_people_write_them(name: str, card: str) -> None:
    found = find_card(name)
    assert found.name == card
    assert found.bandwidth is not None
    assert "No figures" not in found.source


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("RTX 3080 12GB", "GeForce RTX 3080 (10 GB)"),
        ("Tesla V100-SXM3-32GB", "Tesla V100 SXM2 32GB"),
        ("A100-SXM-64GB", "A100 SXM4 80GB"),
        ("GTX 1060 3GB", "GeForce GTX 1060 6GB"),
        ("H100 96GB", "H100 NVL (94 GB)"),
        ("RTX 3060 8GB", "GeForce RTX 3060 (12 GB)"),
        ("H100 80GB HBM2e", "H100 PCIe (80 GB)"),
    ],
)
def test_another_variant_does_not_get_the_figures_of_the_one_listed(name: str, listed: str) -> None:
    found = find_card(name)
    assert found.name == name
    assert (found.memory, found.bandwidth) == (None, None)
    assert (found.fp32_tflops, found.matrix_tflops) == (None, None)
    assert listed in found.source.partition("No figures: ")[2]


@given(
    card=st.sampled_from([card for card in load_table().cards if card.figure("memory")]),
    size=st.integers(1, 300),
)
def test_a_size_that_is_typed_is_the_size_that_is_answered_for(card: Card, size: int) -> None:
    found = find_card(f"{re.sub(' [0-9]+GB', '', card.name)} {size}GB")
    assert found.memory in (None, size)


def test_the_memory_that_torch_sees_tells_variants_apart() -> None:
    def seen(name: str, memory: float, target: str = "8.6") -> float | None:
        return look_up_device(
            Device(kind="cuda", name=name, target=target, memory=memory)
        ).fp32_tflops

    assert seen("NVIDIA GeForce RTX 3080", 9.77) == 29.8
    assert seen("NVIDIA GeForce RTX 3080", 11.76) is None
    assert seen("Tesla T4", 14.58, "7.5") == 8.1
    assert seen("NVIDIA A100-SXM4-80GB", 79.2, "8.0") == 19.5


def test_a_name_of_two_cards_is_answered_with_both() -> None:
    for model, names in load_table().shared_names.items():
        assert model == parse_name(model).model
        assert len({find_card(name).generation for name in names}) == len(names) > 1
        with pytest.raises(UsageError, match="several cards") as raised:
            find_card(model)
        assert all(name in raised.value.cure for name in names)
    with pytest.raises(UsageError, match=r"Quadro RTX 6000, RTX 6000 Ada"):
        find_card("NVIDIA RTX 6000")
    here = look_up_device(Device(kind="cuda", name="NVIDIA RTX 6000", target="8.9"))
    assert here.generation == "Ada Lovelace"


def test_a_laptops_card_does_not_get_the_figures_of_the_desktops() -> None:
    assert find_card("NVIDIA GeForce RTX 3080 Laptop GPU").fp32_tflops is None
    assert find_card("RTX 3080").fp32_tflops == 29.8


@pytest.mark.parametrize(
    ("name", "close"), [("titan", "TITAN RTX"), ("rtx 3900", "GeForce RTX 3090"), ("A1000", "A10")]
)
def test_an_unknown_name_is_answered_with_close_ones(name: str, close: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_card(name)
    assert close in raised.value.cure


@pytest.mark.parametrize("name", ["", "banana", "GTX", "RTX", "16", "80GB", "gpu"])
def test_what_names_no_card_finds_none(name: str) -> None:
    with pytest.raises(UsageError):
        find_card(name)


def test_a_device_is_known_by_its_capability_if_not_by_name() -> None:
    new = Device(kind="cuda", name="NVIDIA Next 1", target="8.6", memory=20.0)
    assert (look_up_device(new).bf16, look_up_device(new).memory) == ("native", 20.0)
    amd = Device(kind="rocm", name="AMD Next", target="gfx90a")
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
    assert generation("NVIDIA GeForce GTX 1650", "7.5").startswith("Turing without tensor cores")


@given(card=st.sampled_from(load_table().cards))
def test_a_listed_card_keeps_its_figures_under_every_target_of_its_generation(card: Card) -> None:
    generation = load_table().generation(card.generation)
    kinds = {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "mps", "Intel": "xpu"}
    for target in generation.targets or (None,):
        device = Device.model_validate(
            {"kind": kinds[generation.vendor], "name": card.name, "target": target}
        )
        assert look_up_device(device) == find_card(card.name)


@pytest.mark.parametrize(
    "name",
    ["Tesla M4", "NVIDIA Tesla M6", "Quadro M4", "GeForce 6800", "Radeon 4090", "Apple A100"],
)
def test_a_card_of_one_vendor_is_not_found_among_those_of_another(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_card(name)
    others = {"Apple", "Radeon"} - {name.split(maxsplit=1)[0]}
    assert not any(f"{other} " in raised.value.cure for other in others)


def test_whose_a_device_is_follows_from_what_runs_it() -> None:
    old = look_up_device(Device(kind="cuda", name="Tesla M4", target="5.2"))
    assert (old.vendor, old.bf16, old.bandwidth) == ("NVIDIA", "emulated", None)
    assert look_up_device(Device(kind="cuda", name="M4")).vendor == "NVIDIA"
    assert look_up_device(Device(kind="mps", name="M4")).generation == "Apple M3 and M4"
    assert (find_card("M4").vendor, find_card("6800 XT").vendor) == ("Apple", "AMD")


def test_the_memory_of_a_device_is_what_torch_reports() -> None:
    device = Device(kind="cuda", name="NVIDIA GeForce RTX 3080", target="8.6", memory=11.76)
    assert look_up_device(device).memory == 11.76


def test_processors_are_known_by_their_flags() -> None:
    new = Processor(name="Xeon", cores=2, features=("amx_bf16", "avx512_fp16", "f16c"))
    old = Processor(name="Xeon", cores=2, features=("f16c",))
    assert (look_up_processor(new).fp16, look_up_processor(new).bf16) == ("native", "native")
    assert (look_up_processor(old).fp16, look_up_processor(old).bf16) == ("emulated", "emulated")


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys; from halfguard.diagnosis.machine.report import report_on_card as r;"
        "print(r('TITAN RTX').choice.precision, {'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout == "fp16-mixed set()\n"
