"""What a `LightningModule` may ask its trainer, where none runs: how far the job is."""

from __future__ import annotations

from typing import NoReturn

from elastic_core.errors import UserError
from elastic_core.train.session import Session


class StandInTrainer:
    """Stands as `trainer` in a module and its data. What it does not know it refuses in words."""

    logger, progress_bar_callback = None, None
    loggers: tuple[()] = ()
    sanity_checking = False
    local_rank = 0  # a rank sees its own device only

    def __init__(self, session: Session) -> None:
        self._session = session
        self.dataset_samples = 0  # until the data is there

    @property
    def current_epoch(self) -> int:
        """Passes over the data set that are done."""
        return self._session.num_samples // self.dataset_samples if self.dataset_samples else 0

    @property
    def global_step(self) -> int:
        return self._session.num_steps

    @property
    def max_epochs(self) -> int:
        """Passes that the job's work is, the last one perhaps in part."""
        if not self.dataset_samples:
            raise UserError("self.trainer.max_epochs is not known before train_dataloader() has given the data.")
        return -(-self._session.total_samples // self.dataset_samples)

    @property
    def estimated_stepping_batches(self) -> int:
        """At the base batch."""
        return self._session.base_steps

    @property
    def global_rank(self) -> int:
        return self._session.rank

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python asks of any object
            raise AttributeError(name)
        raise UserError(
            f"self.trainer.{name}: no Lightning trainer runs in an elastic job. There are current_epoch, global_step, "
            "max_epochs, estimated_stepping_batches, global_rank and is_global_zero (docs/guide/your-model.md)."
        )
