"""Starts one command, waits for it, and says how it ended and how much memory it took.

``python -I -S launcher.py FD WORD...`` writes the exit code and the peak of resident memory to FD, or the
number of the error for which the command could not be started.

It exists because a process is born with the peak of the one that started it, whether by fork or by
posix_spawn: a script started from a worker would seem to take the memory of torch. So it imports next to
nothing, and a command that takes less than this small interpreter (some 9 MB) is told as that.
"""

import errno
import os
import signal
import sys


def launch(report: int, words: list[str]) -> int:
    """The command's exit code; 127 if it could not be started, as shells have it."""
    os.set_inheritable(report, False)
    try:
        # Python ignores these, and a child would inherit that.
        kept = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
        child = os.posix_spawnp(words[0], words, os.environ, setsigdef=kept)
    except (OSError, ValueError) as error:  # the latter for words that no system takes
        number = getattr(error, "errno", None) or errno.EINVAL
        os.write(report, f"error {number}\n".encode())
        return 127
    _, status, usage = os.wait4(child, 0)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # bytes there, KiB elsewhere
    code = os.waitstatus_to_exitcode(status)
    os.write(report, f"{code} {peak}\n".encode())
    return abs(code)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
