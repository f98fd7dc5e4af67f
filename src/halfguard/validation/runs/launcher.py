"""Run one command and report its exit code and peak memory.

``python -I -S launcher.py FD COMMAND...`` writes the exit code and the peak resident memory to FD, or the
error number if the command could not be started.

It exists because a process starts with the peak memory of its parent, with fork as with posix_spawn: a script
started by a worker would seem to use the memory of torch. So this program imports almost nothing. A command
that uses less memory than this small interpreter (about 9 MB) is reported with the interpreter's peak.
"""

import errno
import os
import signal
import sys


def launch(report: int, command: list[str]) -> int:
    """Return the command's exit code, or 127 if it could not be started, as shells do."""
    os.set_inheritable(report, False)
    try:
        # Python ignores these signals, and the command would inherit that.
        reset = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
        child = os.posix_spawnp(command[0], command, os.environ, setsigdef=reset)
    except (OSError, ValueError) as error:  # ValueError: an argument that no system accepts
        number = getattr(error, "errno", None) or errno.EINVAL
        os.write(report, f"error {number}\n".encode())
        return 127
    _, status, usage = os.wait4(child, 0)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # bytes on macOS, else KiB
    code = os.waitstatus_to_exitcode(status)
    os.write(report, f"{code} {peak}\n".encode())
    return abs(code)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
