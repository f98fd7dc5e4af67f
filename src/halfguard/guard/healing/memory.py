"""The memory of healing: plain values, so that a run that is resumed heals at the same steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from halfguard.records.plan import AnyIsland, Island, LineIsland
from halfguard.trials.producer import name_of


@dataclass
class HealedFault:
    """An island that was made, and for which operation."""

    island: AnyIsland
    producer: str = ""  # its key; empty if the island was made in an earlier run
    since: int = -1  # the first step that runs with it; -1 until it is made


@dataclass
class HealingMemory:
    """Counts by producer, what was tried, and the islands that are in force."""

    counts: dict[str, int] = field(default_factory=dict)
    tried: dict[str, list[str]] = field(default_factory=dict)  # names of islands that did not hold
    given_up: list[str] = field(default_factory=list)
    healed: list[HealedFault] = field(default_factory=list)
    in_vain: int = 0  # diagnoses since the last healing
    stopped: bool = False

    @property
    def islands(self) -> list[AnyIsland]:
        """The islands in force, in the order in which they were made."""
        return [fault.island for fault in self.healed]

    def of(self, producer: str) -> HealedFault | None:
        """Return the island that was made for a producer."""
        return next((fault for fault in self.healed if fault.producer == producer), None)

    def count(self, producer: str) -> int:
        """Count one more bad step of a producer; return the number."""
        self.counts[producer] = self.counts.get(producer, 0) + 1
        return self.counts[producer]

    def take_back(self, fault: HealedFault) -> None:
        """Forget an island that did not hold, and do not try it again for this producer."""
        self.healed.remove(fault)
        self.tried.setdefault(fault.producer, []).append(name_of(fault.island))

    def state_dict(self) -> dict[str, Any]:
        """Return plain values."""
        state = asdict(self)
        for fault in state["healed"]:
            fault["island"] = fault["island"].model_dump(mode="json")
        return state

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> HealingMemory:
        """Return the memory of ``state_dict``."""
        plain = dict(state)
        healed = [
            HealedFault(_island(row["island"]), row["producer"], row["since"])
            for row in plain.pop("healed")
        ]
        return cls(**plain, healed=healed)


def _island(values: Mapping[str, Any]) -> AnyIsland:
    kind: type[Island] | type[LineIsland] = Island if "module" in values else LineIsland
    return kind.model_validate(values)
