"""What an algorithm sends and computes for a bucket, as it declares it: what its time on a link is predicted from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one bucket on each rank: bytes that it sends, and how often one message waits for another."""

    sent_bytes: float
    rounds: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent_bytes + other.sent_bytes, self.rounds + other.rounds)


def swapped_chunks(data_bytes: float, world: int) -> Traffic:
    """Chunks to their owners, and sums to all, each from everybody to everybody at once."""
    return Traffic(2 * data_bytes * (world - 1) / world, 2)
