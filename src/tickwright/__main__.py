"""``python -m tickwright``: the command line."""

from tickwright.cli import main

if __name__ == "__main__":
    main()
