"""What a mutant is. An edit is (file, text that is there once, text in its place). `tests`: what catches it where no
simulated fault can, since another layer keeps the same promise (the database behind the code, the code before the
database), or since nothing of it happens in a simulated life."""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str, str]
RULE = 0  # in the place of an invariant's number: a rule of who may do what and how much, which is none of the nine


@dataclass(frozen=True, slots=True)
class Mutant:
    """`invariant`: its number in docs/design/invariants.md, or `RULE`."""

    name: str
    invariant: int
    edits: tuple[Edit, ...]
    tests: tuple[str, ...] = ()  # tried after the simulated faults
    simulated: bool = True  # False: only the tests can see it


def edited(name: str, invariant: int, file: str, old: str, new: str, *tests: str, simulated: bool = True) -> Mutant:
    """A mutant of one edit."""
    return Mutant(name, invariant, ((file, old, new),), tests, simulated)
