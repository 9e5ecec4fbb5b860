"""The console's end of an agent's connection."""

from channels.generic.websocket import AsyncWebsocketConsumer


class AgentConsumer(AsyncWebsocketConsumer):
    """One connected machine."""
