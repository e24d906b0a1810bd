"""Jobs that are over, as policies and forecasts are told of them: by one rule, in production and in simulation."""

from __future__ import annotations


def came_to_its_end(
    *, end_is_known: bool, at_its_limit: bool, target_loss: float | None, last_loss: float | None
) -> bool:  # fmt: skip
    """Whether a job that was neither stopped nor failed ended at what it looked for; else its whole work was not seen.

    `end_is_known`: its amount of work was declared. `at_its_limit`: it ended at the most that it might take. The step
    that reaches the limit may reach the target loss as well: then the last report says so.
    """
    if end_is_known or not at_its_limit:
        return True
    return target_loss is not None and last_loss is not None and last_loss <= target_loss
