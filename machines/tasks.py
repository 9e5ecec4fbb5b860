"""Celery tasks of machines: arguments are ids; each loads, calls a service, returns; safe to run twice."""
