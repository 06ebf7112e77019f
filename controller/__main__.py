"""`python -m controller`: the same program as `unit-workspace`."""

from controller.cli import main

main()
