"""A Slurm cluster on this machine: one ``slurmctld`` and some ``slurmd``, without munge, systemd or root."""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.validation.helper import all_gone

DAEMONS = ("slurmctld", "slurmd", "sbatch")
_PR_SET_CHILD_SUBREAPER = 36
_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=3
MessageTimeout=2
TCPTimeout=1
KillWait=2
MinJobAge=3600
MailProg=/bin/true
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=2000\n"
)


def has_slurm() -> bool:
    return all(_find(name) for name in DAEMONS)


def _find(name: str) -> str | None:
    """Find a program; Debian keeps daemons in ``/usr/sbin``, which is not on every user's path."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class SlurmCluster:
    """Nodes of one processor each, for one ``with`` block; sets ``SLURM_CONF`` in this process."""

    def __init__(self, nodes: int) -> None:
        assert has_slurm()
        self.nodes = [f"n{index + 1}" for index in range(nodes)]
        # Not a test's own folder: the sockets in it need a path of at most 107 characters.
        self._temporary = tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name).resolve()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        # What a node leaves behind becomes our child and not one of process 1, where it may stay a zombie.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._configure()
        self.start_controller()
        for name in self.nodes:
            self._start(name, "slurmd", "-D", "-N", name)
        self._await_nodes()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for name in self.nodes:
            self.kill_node(name)
        self.stop_controller()
        self._temporary.cleanup()

    def _configure(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "plugstack.conf").touch()
        controller, *ports = _free_ports(1 + len(self.nodes))
        text = _CONFIGURATION.format(port=controller, user=getpass.getuser(), folder=self.folder)
        lines = (_NODE.format(name=n, port=p) for n, p in zip(self.nodes, ports, strict=True))
        file = self.folder / "slurm.conf"
        file.write_text("".join(lines) + text)
        os.environ["SLURM_CONF"] = str(file)

    def start_controller(self) -> None:
        self._start("controller", "slurmctld", "-D")

    def stop_controller(self) -> None:
        daemon = self._daemons.pop("controller")
        daemon.terminate()
        daemon.wait()

    def _start(self, name: str, *command: str) -> None:
        program, *arguments = command
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [_find(program) or program, *arguments], stdout=out, stderr=out
            )

    def _await_nodes(self) -> None:
        give_up, idle = time.monotonic() + 60, ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"]
        while time.monotonic() < give_up:
            found = subprocess.run(idle, capture_output=True, text=True, check=False).stdout
            if sorted(found.split()) == self.nodes:
                return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "slurmctld.log").read_text()[-3000:])

    def kill_node(self, name: str) -> None:
        """Kill everything on a node, as if its power had failed."""
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        killed = [daemon.pid]
        daemon.kill()
        daemon.wait()
        # slurmstepd detaches from slurmd and would finish its job; it starts nothing once it is dead.
        for find in (self._step_daemons, self._job_processes):
            for pid in find(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        assert all_gone(killed)

    def node_of(self, pid: int) -> str:
        """Return the node on which a process of a job runs, or an empty text if it has ended."""
        for node in self.nodes:
            if pid in self._job_processes(node):
                return node
        return ""

    def _step_daemons(self, node: str) -> Iterator[int]:
        """Yield the processes that hold the log of the node's ``slurmd`` open."""
        log = self.folder / f"slurmd-{node}.log"
        for pid in _processes():
            with contextlib.suppress(OSError):
                if any(fd.readlink() == log for fd in Path(f"/proc/{pid}/fd").iterdir()):
                    yield pid

    def _job_processes(self, node: str) -> list[int]:
        wanted = {
            f"SLURMD_NODENAME={node}".encode(),
            f"SLURM_CONF={self.folder}/slurm.conf".encode(),
        }
        found = []
        for pid in _processes():
            with contextlib.suppress(OSError):
                if wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                    found.append(pid)
        return found


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
