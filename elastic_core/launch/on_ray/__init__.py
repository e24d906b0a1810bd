"""Ray (https://ray.io) as the layer of nodes: process groups over machines, by the same contract as on one.

`ray_launcher` is Airflow's side, over HTTP alone (`jobs_api`); `coordinator` a group's driver, `node_actor` what acts
on a node, `mailboxes` what nodes of a group tell each other. Ray is imported here only, inside functions.
"""
