"""No DAG: the place where Airflow shows what is wrong with the notifiers that `ELASTIC_NOTIFIERS` names.

A file that cannot be read is among Airflow's import errors, with the reason. Were it that of `elastic_job`, jobs could
neither start nor be registered before the setting is mended.
"""

from __future__ import annotations

from elastic_airflow.notifications.notifier_setting import configured_notifiers
from elastic_core.settings import Settings

configured_notifiers(Settings())
