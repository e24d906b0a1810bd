"""What the supervisor runs, as data: programs, and the stages in which they start and stop.

A stack is a list of stages. A stage is prepared (migrations and the like), then its programs start; a stage
that others build on is waited for. Stages stop in the opposite order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port that a program listens on, and the setting that moves it."""

    number: int
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # told apart by identity: it holds functions
class Program:
    """One supervised program. What its environment lacks it takes from whoever called `elastic up`.

    `health` gets the Unix time of the program's start; it answers None when the program does its work, else why not. A
    program without it is healthy when it has stayed alive for a second.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)  # variables whose values are read from files at the start
    user: str | None = None  # a system user to become, for programs that refuse to run as root
    ports: tuple[Port, ...] = ()
    stop_signal: str = "TERM"
    stop_seconds: int = 15
    health: Callable[[float], str | None] | None = None


def nothing() -> None:
    """The preparation of a stage that needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`prepare` runs before the programs start, `retire` after they have stopped."""

    programs: tuple[Program, ...]
    prepare: Callable[[], None] = nothing
    retire: Callable[[], None] = nothing
    wait: bool = False  # later stages need these programs healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    home: Path
    stages: tuple[Stage, ...]

    def programs(self) -> tuple[Program, ...]:
        return tuple(program for stage in self.stages for program in stage.programs)
