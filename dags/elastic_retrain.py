"""Retrain a model every night, or when its training data is updated; replace the champion only by a better one.

Set Airflow's variable `elastic_retrain_spec` to a job spec (JSON). The new model starts from the champion's weights
(or anew, by the parameter `start_from`); both are measured on the same held-out data; the alias *champion* moves only
if the new one is better. The champion is measured by its own job's parameters, but for those that say which data: set
the variable `elastic_retrain_data_params` to their names (JSON) before you have the spec name other data. Update the
asset `elastic_training_data` from the pipeline that makes the data. For pipelines of your own:
`elastic_airflow.retraining.factory.retraining_dag`.
"""

from __future__ import annotations

from airflow.sdk import Asset

from elastic_airflow.notifications.notifier_setting import parsed_notifiers
from elastic_airflow.retraining.factory import retraining_dag
from elastic_core.settings import Settings

dag = retraining_dag(
    "elastic_retrain",
    "elastic_retrain_spec",
    cron="30 3 * * *",
    data_params="{{ var.json.get('elastic_retrain_data_params', []) }}",
    assets=[Asset("elastic_training_data")],
    notifiers=parsed_notifiers(Settings()),
    dag_display_name="elastic retrain",
    description="Trains again from the champion; the better model becomes the champion",
    doc_md=__doc__,
    is_paused_upon_creation=False,
)
