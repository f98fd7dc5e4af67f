"""Several ranks: rank 0 writes, shards are gathered, and all ranks raise together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg
from halfguard.errors import HalfguardError
from halfguard.numerics.tensor_rows import local_tensor
from tests.support.ranks import Ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    group = Ranks(2)
    yield group
    group.close()


def trained(wrap: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


def save(engine: str, path: str, poisoned_rank: int | None) -> tuple[str, ...] | str:
    """Return the names that the error has on this rank, or its text."""
    state = trained(sharded if engine == "fsdp2" else DistributedDataParallel)
    if poisoned_rank == dist.get_rank():
        parameter = next(state["model"].parameters())
        with torch.no_grad():
            local_tensor(parameter)[0, 0] = torch.nan
    keeper = hg.BestKeeper(f"{path}.best", "loss", "min")
    try:
        keeper.update(state, 1.0 + dist.get_rank())
        hg.save_checkpoint(path, state)
    except HalfguardError as error:
        return getattr(error, "names", str(error))
    finally:
        dist.barrier()
    return ()


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_plain_model_loads_what_ranks_saved(
    pair: Ranks, engine: str, tmp_path: Path, seed: Callable[[int], None]
) -> None:
    path = tmp_path / "a.pt"
    assert pair.run(save, engine, str(path), None) == [(), ()]
    seed(1)
    alone = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(alone.parameters())
    for file in (path, tmp_path / "a.pt.best"):
        saved = torch.load(file, weights_only=True)
        alone.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    assert saved["best"]["value"] == 1.0  # of rank 0
    expected = trained(lambda model: model)["model"].state_dict()
    assert all(torch.allclose(saved["model"][name], expected[name]) for name in expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "a.pt.best"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_poisoned_shard_stops_all_ranks(pair: Ranks, rank: int, tmp_path: Path) -> None:
    assert pair.run(save, "fsdp2", str(tmp_path / "a.pt"), rank) == [("model.0.weight",)] * 2
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_stops_all_ranks(pair: Ranks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    told = pair.run(save, "fsdp2", str(tmp_path / "file" / "a.pt"), None)
    assert told[0] == told[1]
    assert "was not written. rank 0" in told[0]


def save_on_rank_zero(path: str) -> None:
    state = trained(DistributedDataParallel)
    if dist.get_rank() == 0:
        hg.save_checkpoint(path, state)
    dist.barrier()


def test_rank_zero_may_call_alone(pair: Ranks, tmp_path: Path) -> None:
    pair.run(save_on_rank_zero, str(tmp_path / "a.pt"))
    assert torch.load(tmp_path / "a.pt", weights_only=True)["model"].keys() == {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    }
