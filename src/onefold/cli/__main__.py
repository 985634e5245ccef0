"""`python -m onefold.cli` is `onefold`."""

from onefold.cli.app import main

main()
