"""`python -m onefold.cli` is `onefold`."""

from onefold.cli.entry import main

main()
