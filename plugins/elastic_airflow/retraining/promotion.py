"""From a better model to the champion, with a person in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from elastic_airflow.access.behalf import who_approved
from elastic_airflow.operators import ElasticOperator


class _OfRegistration(ElasticOperator):
    """`registration`: what the task `register` returned (templated)."""

    template_fields: Sequence[str] = ("registration",)

    def __init__(self, *, registration: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.registration = registration

    def registered(self) -> Mapping[str, Any]:
        assert isinstance(self.registration, Mapping), "rendered as a native object"
        return self.registration


class BetterOperator(_OfRegistration):
    """Skips the rest of the run where the model is not better than the champion: nobody is asked."""

    def execute(self, context: Any) -> str:
        registration = self.registered()
        if not registration["better"]:
            raise AirflowSkipException(registration["verdict"])
        return str(registration["verdict"])


class PromoteOperator(_OfRegistration):
    """The registered version becomes the champion, on behalf of whoever approved it.

    :param approved_in: the task of this run that asked a person, whose answer Airflow has on record with their name.
    """

    def __init__(self, *, approved_in: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approved_in = approved_in

    def execute(self, context: Any) -> str:
        registration = self.registered()
        name, version = str(registration["model"]), str(registration["version"])
        control = self.control().acting(who_approved(context["ti"], self.approved_in))
        moved = control.promote(name, version, "approved in Airflow")
        self.log.info("version %s of %s is the champion now; before it was %s", version, name, moved.before or "none")
        return version
