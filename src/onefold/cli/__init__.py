"""The command line interface, the only package that prints."""

from onefold.cli.entry import main

__all__ = ["main"]
