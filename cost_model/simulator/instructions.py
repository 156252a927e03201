"""What a device is told to do, in the order of its compute stream.

Communication is posted to a stream and waited for later; streams work through what is posted to them one after the
other. Times are what an instruction takes with nothing beside it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

Key: TypeAlias = Hashable


class Part(NamedTuple):
    """One operation of a piece of work."""

    name: str
    where: str
    ns: int


class Work(NamedTuple):
    """Computing without a pause."""

    ns: int
    category: str
    parts: tuple[Part, ...]


class Move(NamedTuple):
    """One communication. ``link``: what it shares with others on their way at the same time."""

    name: str
    where: str
    ns: int
    category: str
    cause: str
    stream: str
    link: str


class Collective(NamedTuple):
    """A communication that computing waits for at once."""

    move: Move


class Post(NamedTuple):
    """Begin a communication when the compute stream gets here, its stream is free and ``after`` has ended.

    ``message``: what another place may wait for.
    """

    key: Key
    move: Move
    after: Key | None = None
    message: Key | None = None


class Wait(NamedTuple):
    """Go on when what was last posted under ``key`` has ended."""

    key: Key
    cause: str


class Tell(NamedTuple):
    """A message that takes no time: another place may go on."""

    message: Key


class Receive(NamedTuple):
    """Go on when another place's message is there."""

    message: Key


class Open(NamedTuple):
    """What follows, up to ``Close``, belongs to one pass of a program or one call of a block."""

    name: str
    category: str
    level: str
    where: str = ""


class Close(NamedTuple):
    """The end of what the last ``Open`` opened."""


Instruction: TypeAlias = Work | Collective | Post | Wait | Tell | Receive | Open | Close
