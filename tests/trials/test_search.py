"""The search of islands, on benches whose faults are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from halfguard.records.plan import AnyIsland, Island, LineIsland
from halfguard.trials.cost import StepCosts
from halfguard.trials.producer import Producer
from halfguard.trials.proof import Proof
from halfguard.trials.search import Found, IslandSearch, contains

BLOCKS = 6
PARTS = ("norm", "attention", "mlp.up", "mlp.down")
PATHS = [
    "",
    "model",
    "model.head",
    *(f"model.layers.{i}" for i in range(BLOCKS)),
    *(f"model.layers.{i}.mlp" for i in range(BLOCKS)),
    *(f"model.layers.{i}.{part}" for i in range(BLOCKS) for part in PARTS),
]
MODULES: dict[str, nn.Module] = dict.fromkeys(PATHS, nn.Identity())
FLOPS = {"norm": 0.0, "attention": 40.0, "mlp.up": 30.0, "mlp.down": 30.0}
COSTS = StepCosts(
    {
        (f"model.layers.{i}.{part}", "net.py", line): (FLOPS[part], 10)
        for i in range(BLOCKS)
        for line, part in enumerate(PARTS, 1)
    }
)


def culprit(module: str, *, line: int = 0, op: str = "mul") -> Producer:
    return Producer(module, "net.py", line or 99, "y = x", op, "forward", "float16")


@dataclass
class Faulty:
    """A step with operations that fail, in order; an operation is fixed by an island that covers it.

    An operation in ``needs`` is fixed only by an island of that module.
    """

    failing: Sequence[str]
    needs: dict[str, str] = field(default_factory=dict)
    lines: bool = False
    costs: StepCosts = field(default_factory=lambda: COSTS)
    modules: dict[str, nn.Module] = field(default_factory=lambda: MODULES)
    trials: list[tuple[AnyIsland, ...]] = field(default_factory=list)
    rescaling: bool = True

    def prove(self, islands: Sequence[AnyIsland], producer: Producer) -> Proof:
        self.trials.append(tuple(islands))
        return Proof(holds=self.find_producer(islands) is None, error=0.0)

    def find_producer(self, islands: Sequence[AnyIsland]) -> Producer | None:
        modules = [one for one in islands if isinstance(one, Island)]
        lines = {one.line for one in islands if isinstance(one, LineIsland)}
        for path in self.failing:
            line = next((n for n, part in enumerate(PARTS, 1) if path.endswith(part)), 99)
            needed = Island(module=self.needs.get(path, path))
            if not contains(modules, needed, PATHS) and line not in lines:
                return culprit(path, line=line)
        return None

    def candidates(self, producer: Producer) -> list[AnyIsland]:
        found: list[AnyIsland] = []
        path = producer.module or ""
        while path:
            if path in PATHS:
                found.append(Island(module=path))
            path = path.rpartition(".")[0]
        found.append(Island(module=""))
        if self.lines:
            found.append(LineIsland(file="net.py", line=producer.line, code="y = x"))
        return found


def search(bench: Faulty, limit: int = 8) -> Found:
    first = bench.find_producer([])
    assert first is not None
    return IslandSearch(bench).run(first, limit)


def names(found: Found) -> list[str]:
    return [island.module for island, _ in found.islands if isinstance(island, Island)]


def test_one_module_is_one_island() -> None:
    assert names(search(Faulty(["model.layers.2.norm"]))) == ["model.layers.2.norm"]


def test_the_same_fault_in_every_block_is_one_pattern_after_two_trials() -> None:
    bench = Faulty([f"model.layers.{i}.norm" for i in range(BLOCKS)])
    assert names(search(bench, limit=1)) == ["model.layers.*.norm"]
    assert len(bench.trials) == 2


def test_two_faults_in_every_block_are_two_patterns() -> None:
    failing = [f"model.layers.{i}.{part}" for i in range(BLOCKS) for part in ("norm", "mlp.up")]
    assert sorted(names(search(Faulty(failing)))) == [
        "model.layers.*.mlp.up",
        "model.layers.*.norm",
    ]


def test_a_dear_pattern_keeps_the_members_that_are_needed() -> None:
    failing = ["model.layers.1.mlp.up", "model.layers.4.mlp.up"]
    bench = Faulty(["model.layers.0.norm", *failing])
    assert names(search(bench)) == ["model.layers.0.norm", *failing]


def test_members_of_a_pattern_count_as_islands_of_their_own() -> None:
    failing = ["model.layers.1.mlp.up", "model.layers.4.mlp.up"]
    assert names(search(Faulty(failing), limit=1)) == ["model.layers.*.mlp.up"]
    found = search(Faulty(failing), limit=2)
    assert names(found) == failing
    assert [producer.module for _, producer in found.islands] == failing


class Rescaling(Faulty):
    """A list of layers and activations; layers are rescaled before they run in FP32."""

    def candidates(self, producer: Producer) -> list[AnyIsland]:
        own = Island(module=producer.module or "", kind="rescaled")
        return [own, *super().candidates(producer)]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("between", [nn.ReLU(), nn.LayerNorm(4)])
def test_a_rescaled_pattern_has_linear_layers_only(between: nn.Module) -> None:
    failing = [f"model.layers.{i}" for i in (0, 2)]
    layers = {f"model.layers.{i}": between if i % 2 else nn.Linear(4, 4) for i in range(BLOCKS)}
    bench = Rescaling(failing, modules=MODULES | layers)
    assert names(search(bench)) == failing
    assert all(island.kind == "rescaled" for trial in bench.trials for island in trial)
    linear: dict[str, nn.Module] = {path: nn.Linear(4, 4) for path in layers}
    assert names(search(Rescaling(failing, modules=MODULES | linear))) == ["model.layers.*"]


class Inexact(Faulty):
    """Attention whose line in FP32 makes the step finite; keys must be FP32 too for it to be exact."""

    def prove(self, islands: Sequence[AnyIsland], producer: Producer) -> Proof:
        proof = super().prove(islands, producer)
        layers = [one for one in islands if isinstance(one, Island) and one.kind == "rescaled"]
        keys = [f"model.layers.{i}.attention.keys" for i in range(BLOCKS)]
        exact = all(contains(layers, Island(module=one), self.modules) for one in keys)
        return Proof(proof.holds and exact, 0.0 if exact else 0.2)


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("rescaling", [True, False])
def test_what_a_line_in_fp32_reads_is_rescaled_where_the_line_alone_is_inexact(
    rescaling: bool,
) -> None:
    places = [f"model.layers.{i}.attention" for i in range(BLOCKS)]
    layers: dict[str, nn.Module] = {
        f"{one}.{name}": nn.Linear(4, 4) for one in places for name in ("queries", "keys")
    }
    lines = {(one, "net.py", 2): (0.1, 10) for one in places}
    costs = StepCosts(COSTS.places | lines | {(one, "", 0): (39.9, 10) for one in layers})
    bench = Inexact(places, lines=True, costs=costs, modules=MODULES | layers, rescaling=rescaling)
    found = search(bench)
    kinds = [(type(island), island.kind) for island, _ in found.islands]
    if rescaling:
        assert kinds == [(LineIsland, "fp32"), (Island, "rescaled")]
        assert names(found) == ["model.layers.*.attention.keys"]
    else:
        assert not kinds


def test_a_pattern_without_products_stays_whole() -> None:
    assert names(search(Faulty(["model.layers.1.norm", "model.layers.4.norm"]))) == [
        "model.layers.*.norm"
    ]


def test_a_cheaper_line_comes_before_the_module() -> None:
    lines = {(f"model.layers.{i}.attention", "net.py", 2): (1.0, 10) for i in range(BLOCKS)}
    layers = {(f"model.layers.{i}.attention", "", 0): (39.0, 10) for i in range(BLOCKS)}
    costs = StepCosts(COSTS.places | lines | layers)
    found = search(Faulty(["model.layers.0.attention"], lines=True, costs=costs))
    assert [type(island) for island, _ in found.islands] == [LineIsland]


def test_where_its_own_module_does_not_help_the_next_in_cost_is_tried() -> None:
    path = "model.layers.3.mlp.down"
    assert names(search(Faulty([path], {path: "model.layers.3.mlp"}))) == ["model.layers.3.mlp"]


def test_a_parent_with_most_of_the_flops_is_reported_and_not_made() -> None:
    failing = [f"model.layers.{i}" for i in range(BLOCKS)]
    found = search(Faulty(failing, dict.fromkeys(failing, "model")))
    assert not found.islands
    assert found.needed == Island(module="model")
    assert found.cost.flops == 1.0


def test_more_places_than_the_limit_are_not_healed() -> None:
    failing = ["model.layers.0.norm", "model.layers.0.attention", "model.layers.0.mlp.up"]
    assert (
        not search(Faulty(failing), limit=2).islands or len(search(Faulty(failing), 2).islands) <= 2
    )


@given(st.lists(st.sampled_from(PATHS[3:]), min_size=1, max_size=6, unique=True), st.booleans())
def test_what_is_found_is_proven_and_cheap(failing: list[str], lines: bool) -> None:
    bench = Faulty(failing, lines=lines)
    found = search(bench)
    islands = [island for island, _ in found.islands]
    if islands:
        assert bench.find_producer(islands) is None
        assert tuple(islands) in bench.trials
        for island in islands:
            rest = [one for one in islands if one is not island]
            is_pattern = isinstance(island, Island) and "*" in island.module
            assert is_pattern or bench.find_producer(rest) is not None, (
                "an island that is not needed"
            )
    assert len(bench.trials) <= 30


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("model.layers.*.norm", [f"model.layers.{i}.norm" for i in range(BLOCKS)]),
        ("model.layers.2.norm", ["model.layers.2.norm"]),
        ("model.*.norm", []),
        ("", [""]),
    ],
)
def test_a_star_is_the_index_of_a_block(pattern: str, paths: list[str]) -> None:
    assert Island(module=pattern).members(PATHS) == paths
