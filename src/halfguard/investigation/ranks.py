"""Several ranks on one machine, started by torchrun: each runs the same passes, and they agree on the event.

The ranks of a pass are processes of different parents, which meet in a folder. When one rank has answered,
the others wait in a collective for ever, so their parents end them. Each pass has a port of its own: the
store of torchrun still holds the keys of the last one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.investigation.passes import PassResult, read_result, write_result

_WAIT = 600.0  # seconds for the other ranks
_GRACE = 3.0  # seconds in which a rank may see the event itself
_POLL = 0.05
_ENDS_ALL = ("event", "crashed", "died", "interrupted", "steps")
# A loss that is bad on one rank is a bad gradient on all of them.
_ORDER = ("loss", "looked", "exception", "gradients", "parameters", "scale")


@dataclass
class Ranks:
    """The ranks of one job, as one of their parents sees them."""

    rank: int
    size: int
    folder: Path
    port: int
    passes: int = 0
    _seen: float = 0.0

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Ranks | None:
        """Return the ranks that torchrun started, or None for a single process."""
        size = int(variables.get("WORLD_SIZE", "1"))
        if size == 1:
            return None
        if int(variables.get("LOCAL_WORLD_SIZE", size)) < size:
            raise UsageError(
                "halfguard why supports only ranks on one machine, but this job uses several machines.",
                cure="Start it on one machine with torchrun --standalone.",
            )
        port = int(variables.get("MASTER_PORT", "29500"))
        job = f"{os.getuid()}-{port}-{variables.get('TORCHELASTIC_RUN_ID', 'job')}"
        folder = Path(tempfile.gettempdir(), f"halfguard-why-{job}").resolve()
        folder.mkdir(exist_ok=True)
        return cls(int(variables["RANK"]), size, folder, port)

    def begin_pass(self) -> dict[str, str]:
        """Wait for all ranks, and return the variables of the next pass."""
        self.passes += 1
        self._seen = 0.0
        self.meet("begins")
        return {
            "MASTER_PORT": str(self.port + self.passes),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }

    def meet(self, what: str) -> None:
        """Wait until every rank has come to the same place."""
        self._file(what, self.rank).touch()
        until = time.monotonic() + _WAIT
        while not all(self._file(what, rank).exists() for rank in range(self.size)):
            if time.monotonic() > until:
                raise UsageError(
                    f"Rank {self.rank} waited {_WAIT:g} s for the other ranks, which did not respond.",
                    cure="Check the output of the other ranks.",
                )
            time.sleep(_POLL)

    def others_have_ended(self) -> bool:
        """Return whether another rank has answered, some time ago, so that this one waits in vain."""
        answers = [read_result(self._file("result", rank)) for rank in range(self.size)]
        if not any(answer is not None and answer.ended in _ENDS_ALL for answer in answers):
            return False
        self._seen = self._seen or time.monotonic()
        return time.monotonic() - self._seen > _GRACE

    def agree(self, result: PassResult, rank: int | None) -> PassResult:
        """Give this rank's result; return that of ``rank``, or of the rank where the event began."""
        write_result(str(self._file("result", self.rank)), result)
        self.meet("ended")
        found = [read_result(self._file("result", one)) or PassResult() for one in range(self.size)]
        if rank is None:
            rank = min(range(self.size), key=lambda one: _order(found[one]))
        return found[rank].model_copy(update={"rank": rank})

    def leave(self) -> None:
        """Remove the folder, after all ranks have read it."""
        self.meet("left")
        if self.rank == 0:
            time.sleep(2 * _POLL)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, what: str, rank: int) -> Path:
        return self.folder / f"{self.passes}-{what}-{rank}"


def _order(result: PassResult) -> tuple[bool, int, int]:
    event = result.event
    if event is None:
        return True, -result.backward, 0
    return False, event.backward, _ORDER.index(event.kind)
