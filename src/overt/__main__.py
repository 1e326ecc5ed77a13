"""`python -m overt` is the command line."""

from overt.cli import main

main()
