"""The command ``autopar``. Importing it imports neither torch nor anything that a command needs alone."""

from autopar.cli.entry import main

__all__ = ["main"]
