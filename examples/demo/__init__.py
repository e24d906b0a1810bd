"""The demo: four real training jobs arrive one after another and share four CPU slots under Airflow. One of them
ends by its loss: its work is forecast while it runs.

    python -m examples.demo [--keep] [--running] [--seconds 900]

Reuses the platform's services if they run, else starts them and stops them at the end (`--keep` leaves them). With
`--running` it starts nothing, and uses those that the settings name: in a container, for one.
"""
