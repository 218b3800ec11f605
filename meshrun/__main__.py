"""Owns: `python -m meshrun`.
Must not: do anything but call main.
Called by: python."""

from meshrun.cli.entry import main

if __name__ == "__main__":
    main()
