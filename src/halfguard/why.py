"""``python -m halfguard.why SCRIPT``: the command ``halfguard why``, for torchrun and for ``python -m``."""

import sys

from halfguard.cli.app import main

if __name__ == "__main__":
    sys.argv[1:1] = ["why"]
    main()
