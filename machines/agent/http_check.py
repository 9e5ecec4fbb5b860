"""An http probe: one GET on the machine's own network, which is its workers' too."""

import os

import aiohttp
from yarl import URL

from machines.orders import HttpCheck

HOST = "127.0.0.1"
GOOD = range(200, 400)


async def http_failure(check: HttpCheck) -> str:
    """Why it failed; empty when the answer is good. Never raises: no answer is an answer too."""
    url = URL(f"{check.scheme}://{HOST}:{check.port}{check.path}", encoded=True)
    connector = aiohttp.TCPConnector(ssl=False, force_close=True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, headers={"User-Agent": "astra-probe"}) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            return "" if response.status in GOOD else f"HTTP {response.status}"
    except aiohttp.ClientConnectorError as error:
        return f"port {check.port}: {os.strerror(error.os_error.errno or 0)}"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"port {check.port}: {error or type(error).__name__}"
