"""Layouts that a spec asks for against those that its task admits: refused at submission, not after a wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elastic_core.spec.job import JobSpec
from elastic_core.spec.problems import refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """How a task's model may be cut; the default is not at all. Found by `train.process.inspect`."""

    tensor: tuple[int, ...] = (1,)  # sizes that its tensor plan can be applied at
    max_pipeline: int = 1  # stages that its model can be split into
    sharded: bool = False


def check_layouts(spec: JobSpec, admitted: Admitted) -> None:
    """Raises `UserError` with everything that the task does not admit, and what is possible."""
    problems = list(_problems(spec, admitted))
    if problems:
        raise refuse("job spec", problems)


def _problems(spec: JobSpec, admitted: Admitted) -> Iterator[str]:
    layouts, task = spec.layouts, spec.entry_point
    if over := [size for size in layouts.tensor if size not in admitted.tensor]:
        yield (
            f"layouts.tensor: {task} cannot be tensor-parallel over {_list_sizes(over)} slots; possible with these "
            f"parameters: {_list_sizes(admitted.tensor)}"
        )
    if deep := [size for size in layouts.pipeline if size > admitted.max_pipeline]:
        yield (
            f"layouts.pipeline: {task} cannot be split into {_list_sizes(deep)} stages; possible with these "
            f"parameters: 1 to {admitted.max_pipeline}"
            if admitted.max_pipeline > 1
            else f"layouts.pipeline: {task} declares no layers that a pipeline could be split at; possible: 1"
        )
    if layouts.sharded != "never" and not admitted.sharded:
        yield f"layouts.sharded: {task} does not admit sharded state; possible: never"


def _list_sizes(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
