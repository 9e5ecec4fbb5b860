"""Follow one worker's log."""

from channels.generic.websocket import AsyncWebsocketConsumer


class LogConsumer(AsyncWebsocketConsumer):
    """Filled with the log follower."""
