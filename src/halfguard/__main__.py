"""Run the program as ``python -m halfguard``, for environments whose scripts are not on the path."""

from halfguard.cli import main

if __name__ == "__main__":
    main()
