"""`astra login`."""

import socket
import time
from dataclasses import replace
from typing import Any

import click

from astraconsole.cli import config
from astraconsole.cli.client import Api
from astraconsole.cli.config import Config
from astraconsole.cli.following import Patience
from astraconsole.cli.http import split_url
from astraconsole.cli.output import Progress, as_json, harmless, print_json
from astraconsole.cli.problems import NotConfigured, Problem
from astraconsole.cli.version import program

HOST_LENGTH = 100


@click.command("login")
@click.argument("url", required=False)
@as_json
def command(url: str | None, as_json: bool) -> None:
    """Sign in to the console at URL, which you approve in a browser. Without URL: to the last one, or to $ASTRA_URL."""
    known = config.load()
    chosen = replace(known, url=(url or known.url).rstrip("/"))
    if not chosen.url:
        raise NotConfigured("which console? Give its address: astra login https://console.example.com")
    split_url(chosen.url)
    token = _token(Api(chosen.url), chosen.url, quiet=as_json)
    person = Api(chosen.url, token).call("GET", "whoami")
    signed_in = _place(replace(chosen, token=token), person["workspaces"])
    config.save(signed_in)
    if as_json:
        print_json({"url": signed_in.url, "user": person["username"], "workspaces": person["workspaces"]})
        return
    where = f"working in {signed_in.place}" if signed_in.workspace else "in no workspace yet: ask to be added to one"
    click.echo(f"Signed in as {harmless(person['email'] or person['username'])}, {where}")


def _token(api: Api, url: str, quiet: bool) -> str:
    """An API token, once somebody has approved the code. Raises Refused: denied, or expired."""
    begun = api.call("POST", "device/code", json={"host": _host(), "program": program()})
    code = begun["user_code"]
    click.echo(f"Open {url}/device?code={code} and approve code {code}", err=quiet)
    progress = Progress()
    patience = Patience(lambda note: click.echo(f"({harmless(note)})", err=True))
    began = time.monotonic()
    while (left := begun["expires_in"] - (time.monotonic() - began)) > 0:
        answer: Any = patience.ask(lambda: api.call("POST", "device/token", json={"device_code": begun["device_code"]}))
        if answer is not None and "token" in answer:
            progress.clear()
            return str(answer["token"])
        progress.show(f"waiting for the approval, {left:.0f} s left")
        time.sleep(begun["interval"])
    raise Problem("nobody approved the code in time: run `astra login` again")


def _place(signed_in: Config, workspaces: list[dict[str, str]]) -> Config:
    """Where to work: as before where that is possible, else in the first workspace."""
    places = [(place["organisation"], place["workspace"]) for place in workspaces]
    if (signed_in.organisation, signed_in.workspace) in places:
        return signed_in
    organisation, workspace = places[0] if places else ("", "")
    return replace(signed_in, organisation=organisation, workspace=workspace, cluster="")


def _host() -> str:
    name = "".join(character for character in socket.gethostname() if character.isprintable()).strip()
    return name[:HOST_LENGTH] or "unknown"
