"""From a better model to the champion, with a person in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowSkipException, TaskAwaitingInput

from elastic_airflow.access.behalf import who_approved
from elastic_airflow.access.handed import Handed
from elastic_airflow.notifications.job_news import JobNews, approval_news, run_link, tell
from elastic_airflow.notifications.run_callbacks import known_job
from elastic_airflow.operators import ElasticOperator
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.settings import Settings
from elastic_core.text import span
from elastic_core.track.champions.model_aliases import drop_challenger
from elastic_core.track.champions.registry_api import open_registry


class _OfRegistration(ElasticOperator):
    """`registration`: what the task `register` returned (templated)."""

    template_fields: Sequence[str] = ("registration",)

    def __init__(self, *, registration: Mapping[str, Any] | Handed | str, **kwargs: Any) -> None:
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


class ApproveOperator(ApprovalOperator):
    """Asks a person whether the registered version shall become champion. One that is rejected is no challenger any
    more: it would seem to wait for a word for ever. Nor is one that nobody answered for within `response_timeout`,
    which is skipped, saying so: the runs after it wait for this one.

    `registration`: what the task `register` returned; `job_id`: that trained it (both templated). `notifiers` are told
    that somebody is asked.
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "registration", "job_id")

    def __init__(
        self, *, registration: Mapping[str, Any] | Handed | str, job_id: str | Handed = "",
        notifiers: Sequence[BaseNotifier] = (), **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(defaults=self.REJECT, **kwargs)
        self.registration, self.job_id, self.asked_by = registration, job_id, tuple(notifiers)

    def execute(self, context: Any) -> Any:
        try:
            return super().execute(context)
        except TaskAwaitingInput:  # the question can be answered from here on
            tell(self.asked_by, self._question(context), context, self.log)
            raise

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        if self.REJECT in event.get("chosen_options", ()):
            self._withdraw()
        if event.get("timedout"):
            name, version = self._version()
            raise AirflowSkipException(
                f"nobody has answered{self._within()}: the champion stays, and version {version} of {name} is no "
                f"challenger any more. `elastic models promote {name} {version}` makes it champion all the same."
            )
        return super().execute_complete(context=context, event=event)

    def _question(self, context: Any) -> JobNews:
        ti, (name, version) = context["ti"], self._version()
        links = run_link(ti.dag_id, ti.run_id)
        links["Approve"] = f"{links['Run']}/tasks/{ti.task_id}/required_actions"
        question = f"version {version} of model {name} waits for a person's approval{self._within()}: {self.body}"
        return approval_news(question, self.job_id, known_job(self.job_id) if self.asked_by else None, links)

    def _within(self) -> str:
        return "" if self.response_timeout is None else f" within {span(self.response_timeout.total_seconds())}"

    def _version(self) -> tuple[str, str]:
        assert isinstance(self.registration, Mapping), "rendered as a native object"
        return str(self.registration["model"]), str(self.registration["version"])

    def _withdraw(self) -> None:
        """Whatever fails here, the word was given: a task that fails would ask for it again."""
        name, version = self._version()
        try:
            with open_registry(Settings()) as registry:
                drop_challenger(registry, name, version)
        except (InfrastructureError, UserError) as error:
            self.log.warning("version %s of %s may still be shown as challenger in MLflow: %s", version, name, error)


class PromoteOperator(_OfRegistration):
    """The registered version becomes the champion, on behalf of whoever approved it, who was told how it compares with
    the champion of then: where another version is champion by now, it is refused.

    :param approved_in: the task of this run that asked a person, whose answer Airflow has on record with their name.
    """

    def __init__(self, *, approved_in: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.approved_in = approved_in

    def execute(self, context: Any) -> str:
        registration = self.registered()
        name, version = str(registration["model"]), str(registration["version"])
        control = self.control().acting(who_approved(context["ti"], self.approved_in))
        against = registration.get("against")  # of a run that registered under an earlier release: not known
        moved = control.promote(name, version, "approved in Airflow", None if against is None else str(against))
        self.log.info("version %s of %s is the champion now; before it was %s", version, name, moved.before or "none")
        return version
