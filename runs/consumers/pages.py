"""Live fragments of the runs list, a run's page and a worker's page."""

from channels.generic.websocket import AsyncWebsocketConsumer


class RunsConsumer(AsyncWebsocketConsumer):
    """The runs list of a workspace."""


class RunConsumer(AsyncWebsocketConsumer):
    """One run's page."""


class WorkerConsumer(AsyncWebsocketConsumer):
    """One worker's page."""
