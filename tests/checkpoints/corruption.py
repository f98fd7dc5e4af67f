"""Random corruptions of random training states, and random kills of a process that saves.

``scripts/soak poison [CORRUPTIONS] [KILLS]`` runs many; CI runs few.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import halfguard as hg
from halfguard.errors import PoisonedStateError
from tests.support.forks import FORKED


def random_state(chance: random.Random) -> dict[str, Any]:
    """Return model, average and optimizer of random shape and dtype, after one step."""
    torch.manual_seed(chance.randrange(2**32))
    width = chance.randrange(1, 20)
    layers = [nn.Linear(width, width) for _ in range(chance.randrange(1, 4))]
    model: nn.Module = nn.Sequential(*layers, nn.BatchNorm1d(width))
    model.to(chance.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16]))
    optimizer = chance.choice([_adam, _momentum])(model)
    ema = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    batch = torch.randn(4, width, dtype=next(model.parameters()).dtype)
    model(batch).float().square().mean().backward()
    optimizer.step()
    ema.update_parameters(model)
    state = {"model": model, "ema": ema, "optimizer": optimizer, "lists": [[torch.randn(5)], 1.5]}
    return {key: state[key] for key in chance.sample(sorted(state), chance.randrange(1, 5))}


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, amsgrad=True)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every floating-point tensor, found without halfguard's own walk."""
    if isinstance(value, nn.Module):
        value = value.state_dict()
    if isinstance(value, torch.optim.Optimizer):
        value = value.state_dict()["state"]
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield name, value
    elif isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in entries:
            yield from leaves(item, f"{name}.{key}" if name else str(key))


@torch.no_grad()
def corrupt(tensor: Tensor, chance: random.Random, overflow: bool) -> None:
    """Write one bad value somewhere: any NaN or infinity, or a number beyond FP16."""
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.flatten()
    place = chance.randrange(flat.numel())
    if overflow:
        flat[place] = chance.choice([-1, 1]) * 2.0 ** chance.uniform(16, 100)
        return
    exponent = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}
    integers = {2: torch.int16, 4: torch.int32}[flat.itemsize]
    width = 8 * flat.itemsize
    mantissa = chance.choice([0, chance.randrange(exponent[flat.dtype] & -exponent[flat.dtype])])
    bits = exponent[flat.dtype] | mantissa | chance.randrange(2) << (width - 1)
    flat.view(integers)[place] = bits - (1 << width) * (bits >> (width - 1))


def try_corruptions(folder: Path, count: int, seed: int) -> None:
    """Corrupt ``count`` states, one value each: all are refused by name, and were saved before."""
    chance = random.Random(seed)
    path = folder / "checkpoint.pt"
    for number in range(count):
        state = random_state(chance)
        has_optimizer = "optimizer" in state
        dtype = None if has_optimizer else chance.choice([None, torch.float16])
        hg.save_checkpoint(path, state, dtype=dtype)
        before = path.read_bytes()
        name, victim = chance.choice([leaf for leaf in leaves(state) if leaf[1].numel()])
        wide = victim.dtype is not torch.float16 and dtype is torch.float16
        corrupt(victim, chance, overflow=wide and chance.random() < 0.5)
        where = f"seed {seed}, corruption {number} of {name}"
        (bad,) = refused_names(path, state, dtype, where)
        # Between the first and the last part, an optimizer's state has the name of its parameter.
        assert bad.split(".")[0] == name.split(".")[0], f"{where}: {bad}"
        assert bad.split(".")[-1] == name.split(".")[-1], f"{where}: {bad}"
        assert path.read_bytes() == before, where
        assert [file.name for file in folder.iterdir()] == [path.name], where
        saved = torch.load(path, weights_only=True)
        assert all(tensor.isfinite().all() for _, tensor in leaves(saved)), where


def refused_names(
    path: Path, state: dict[str, Any], dtype: torch.dtype | None, where: str
) -> tuple[str, ...]:
    try:
        hg.save_checkpoint(path, state, dtype=dtype)
    except PoisonedStateError as error:
        return error.names
    raise AssertionError(f"{where}: it was saved")


def save_for_ever(folder: str, done: Connection) -> None:
    """Save ever better states; send each number when its file is said to be safe."""
    keeper = hg.BestKeeper(Path(folder, "best.pt"), "score", "max")
    first = 0 if keeper.value is None else int(keeper.value) + 1
    done.send(first - 1)
    for number in range(first, first + 100_000):
        state = {"model": [torch.full((50_000,), float(number)) for _ in range(8)]}
        hg.save_checkpoint(Path(folder, "last.pt"), state)
        keeper.update(state, number)
        done.send(number)


def kill_while_saving(folder: Path, kills: int, seed: int) -> int:
    """Kill a process that saves, at random moments; return how many files it had finished in all.

    The last files that were finished, or newer ones, must be whole each time, and the next process continues.
    """
    chance, last = random.Random(seed), -1
    for kill in range(kills):
        told, tells = FORKED.Pipe(duplex=False)
        saver = FORKED.Process(target=save_for_ever, args=(str(folder), tells))
        saver.start()
        tells.close()
        assert told.recv() >= last, f"seed {seed}, kill {kill}: the best was forgotten"
        if last < 0:
            told.poll(60)  # a busy machine may need longer than the pause for the first file
        time.sleep(chance.uniform(0, 0.15))
        saver.kill()
        saver.join()
        assert saver.exitcode == -signal.SIGKILL
        last = max([last, *_received(told)])
        _assert_whole(folder, last, f"seed {seed}, kill {kill}")
    return last + 1


def _received(pipe: Connection) -> Iterator[int]:
    try:
        while pipe.poll():
            yield pipe.recv()
    except EOFError:
        return


def _assert_whole(folder: Path, last: int, where: str) -> None:
    for name in ("last.pt", "best.pt"):
        if last < 0 and not (folder / name).exists():
            continue  # killed before the first file was finished
        saved = torch.load(folder / name, weights_only=True)
        number = float(saved["model"][0][0])
        assert number >= last, f"{where}: {name} is older than what was finished"
        assert all((part == number).all() for part in saved["model"]), f"{where}: {name} is mixed"
        assert "best" not in saved or saved["best"]["value"] == number, where


def main(corruptions: int = 1000, kills: int = 200) -> None:
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try_corruptions(Path(folder), corruptions, seed)
    print(f"{corruptions} corruptions: all refused by name, all healthy twins saved", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        finished = kill_while_saving(Path(folder), kills, seed)
    print(f"{kills} kills: the last good file was whole each time; {finished} finished in all")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
