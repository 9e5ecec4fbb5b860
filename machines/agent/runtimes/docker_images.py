"""An image, had on the machine as a pull policy says."""

from collections.abc import Callable
from dataclasses import dataclass

import aiodocker

from machines.agent.runtimes import docker_request as request
from machines.agent.runtimes.base import CannotStart, RegistryLogin
from machines.agent.runtimes.docker_engine import Engine
from machines.images import image_reference
from machines.protocol import EndReason


@dataclass(frozen=True)
class Image:
    """`digest`: what a registry knows it by, see `docker_request.image_digest`."""

    reference: str
    digest: str


async def provide_image(
    engine: Engine, name: str, pull_policy: str, login: RegistryLogin | None, tell: Callable[[str], None]
) -> Image:
    """`tell` hears "" when a pull begins, then `61 %`. Raises CannotStart."""
    try:
        reference = image_reference(name)
    except ValueError as error:
        raise CannotStart(EndReason.IMAGE_PULL, f"{error}: {name}") from error
    image = None
    if pull_policy != "Always":
        image = await engine.image(reference)
    if image is None and pull_policy == "None":
        raise CannotStart(EndReason.IMAGE_MISSING, f"Image {name} is not present and the pull policy is None")
    if image is None:
        tell("")
        await _pull(engine, reference, login, tell)
        image = await engine.image(reference)
    if image is None:
        raise CannotStart(EndReason.IMAGE_PULL, f"{reference} was pulled, and is no longer there")
    return Image(reference, request.image_digest(image, reference))


async def _pull(engine: Engine, reference: str, login: RegistryLogin | None, tell: Callable[[str], None]) -> None:
    try:
        await engine.pull(reference, tell, login)
    except aiodocker.DockerError as error:
        kind = request.pull_failure(error.message, reference)
        message = request.with_login(error.message, kind, login)
        raise CannotStart(EndReason.IMAGE_PULL, message, pull_failure=kind) from error
