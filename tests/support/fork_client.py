"""Stand in for ``python``, ``halfguard`` or ``torchrun``: a fork of the server beside it runs the program.

It runs as a process of its own if the server cannot do it: with other options of Python, or with other
variables that are read when torch is imported.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import NoReturn

# forks.py writes a copy of this file for each server. Its first line names the real Python.
PROGRAM = os.path.abspath(sys.argv[0])  # noqa: PTH100 - pathlib takes long to import
FOLDER, NAME = os.path.split(PROGRAM)
STOPS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    options, arguments = _split(sys.argv[1:]) if NAME == "python" else ([], sys.argv[1:])
    request = {
        "program": PROGRAM,
        "options": options,
        "arguments": arguments,
        "folder": os.getcwd(),  # noqa: PTH109
        "variables": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX) as server, server.makefile() as answers:
        server.connect(os.path.join(FOLDER, "socket"))  # noqa: PTH118
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        if (line := answers.readline()) == "no\n":
            _run_as_usual()
        pid = int(line)
        for number in STOPS:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code in STOPS else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return Python's own options, and the program with its arguments; only those of -W have values here."""
    first = 0
    while words[first : first + 1] in (["-W"], ["-u"]):
        first += 2 if words[first] == "-W" else 1
    rest = words[first:]
    if rest and (rest[0] in ("-c", "-m") or not rest[0].startswith("-")):
        return words[:first], rest
    return words, []


def _run_as_usual() -> NoReturn:
    real = os.path.join(os.path.dirname(sys.executable), NAME)  # noqa: PTH118, PTH120
    os.execv(real, [real, *sys.argv[1:]])


if __name__ == "__main__":
    main()
