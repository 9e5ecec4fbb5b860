"""Celery tasks of runs: arguments are ids; each loads, calls a service, returns; safe to run twice."""
