"""`python -m jobs.cli`: the same command."""

from jobs.cli.app import main

main()
