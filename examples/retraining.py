"""A team's retraining pipeline in a file of DAGs: an update of the data trains again, and mail says how that ended.

Copied into `dags/` it is a pipeline; in here Airflow does not read it.
"""

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import Asset

from elastic_airflow.retraining.factory import retraining_dag

dag = retraining_dag(
    "retrain_digits",
    {"name": "digits", "entry_point": "examples.digits:Digits", "work": {"epochs": 5},
     "batch": {"min": 32, "max": 512}, "slots": {"min": 1, "max": 4}, "segment": {"seconds": 600}},
    assets=[Asset("digits_of_today")],
    notifiers=[SmtpNotifier(to="ann@example.org", subject="{{ elastic.event }}", html_content="{{ elastic.message }}")],
)  # fmt: skip
