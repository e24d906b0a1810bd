"""The platform inside Airflow: control API and page in the API server, nothing in any other component.

Airflow imports this module in every component and every task, so it imports nothing at its top but Airflow's plugin
class; the app is built when the API server asks for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from elastic_airflow.names import (
    DECISIONS_ROUTE,
    JOB_ROUTE,
    MODELS_ROUTE,
    PAGE_ROUTE,
    TABLE_ROUTE,
    URL_PREFIX,
    WHAT_IF_ROUTE,
)


class ElasticPlugin(AirflowPlugin):
    name = "elastic"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Asked for by the API server, and by `airflow plugins`."""
        from elastic_airflow.api_server import plugin_app

        return [{"app": plugin_app(), "url_prefix": URL_PREFIX, "name": "Elastic training platform"}]

    @cached_property
    def fastapi_root_middlewares(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Asked for as `fastapi_apps`."""
        from elastic_airflow.page.form_check import FormCheck

        return [{"middleware": FormCheck, "name": "Elastic: what is wrong with a form"}]

    @cached_property
    def timetables(self) -> list[Any]:  # type: ignore[override]
        """Asked for where a DAG that names one is read or written."""
        from elastic_airflow.tasks.segment_timetable import ByLedger, ByReconciliation

        return [ByLedger, ByReconciliation]

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [
            {
                "name": "Elastic",
                "href": f"{URL_PREFIX}/page/",
                "destination": "nav",
                "url_route": PAGE_ROUTE,
                "icon": f"{URL_PREFIX}/page/icon.svg",
                "nav_top_level": True,
            },
            {
                "name": "Elastic jobs",
                "href": f"{URL_PREFIX}/page/table.html",
                "destination": "nav",
                "url_route": TABLE_ROUTE,
                "icon": f"{URL_PREFIX}/page/icon.svg",
                "nav_top_level": True,
            },
            {
                "name": "Elastic job",
                "href": f"{URL_PREFIX}/page/job/job.html",
                "destination": "nav",
                "url_route": JOB_ROUTE,
                "icon": f"{URL_PREFIX}/page/icon.svg",
            },
            {
                "name": "Elastic what-if",
                "href": f"{URL_PREFIX}/page/what_if/what_if.html",
                "destination": "nav",
                "url_route": WHAT_IF_ROUTE,
                "icon": f"{URL_PREFIX}/page/icon.svg",
            },
            {
                "name": "Elastic decisions",
                "href": f"{URL_PREFIX}/page/decisions/decisions.html",
                "destination": "nav",
                "url_route": DECISIONS_ROUTE,
                "icon": f"{URL_PREFIX}/page/icon.svg",
            },
            {
                "name": "Elastic models",
                "href": f"{URL_PREFIX}/page/models/models.html",
                "destination": "nav",
                "url_route": MODELS_ROUTE,
                "icon": f"{URL_PREFIX}/page/icon.svg",
            },
        ]


if __name__ != "elastic_airflow.plugin":  # how Airflow names a file that it found in its plugins folder
    from importlib.metadata import entry_points

    if any(point.value == "elastic_airflow.plugin:ElasticPlugin" for point in entry_points(group="airflow.plugins")):
        del ElasticPlugin  # the installed package brings it: Airflow complains of one that it finds twice
