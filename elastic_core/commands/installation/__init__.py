"""The installation as a whole: where it lies, with which settings it runs, whether it is sound.
As the other commands may, it imports everything but Airflow."""
