"""HTTP through Django; websockets straight to their consumers (agent frames never pass Django's middleware)."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")

application = ProtocolTypeRouter({"http": get_asgi_application()})
