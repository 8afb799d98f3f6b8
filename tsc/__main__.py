"""`python -m tsc`."""

from tsc.cli import main

main()
