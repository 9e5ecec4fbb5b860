"""The JSON API's root: authentication, error shape, and the routers of the apps."""

from ninja import NinjaAPI

api = NinjaAPI(title="Astra console", version="1", docs_url="/docs")
