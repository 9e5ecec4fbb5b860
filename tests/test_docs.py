"""What the documents say exists, exists; and what exists is in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from astraconsole import errors
from astraconsole.cli.config import ENVIRONMENT
from astraconsole.cli.main import ASTRAEUS, SLURM, TOP, Verb, astra
from astraconsole.cli.problems import Exit
from machines import protocol
from machines.agent.main import main as astra_agent
from tests.conftest import PROJECT

README = (PROJECT / "README.md").read_text()
PAGES = [
    PROJECT / "README.md",
    PROJECT / "CHANGELOG.md",
    *(PROJECT / "docs").rglob("*.md"),
    *PROJECT.glob("*/*/README.md"),
]
COMMANDS = {"astra": astra, "astra-agent": astra_agent}


def code_blocks(text: str) -> str:
    return "\n".join(re.findall(r"^```(?:sh|ini)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def rows_of(heading: str) -> Iterator[str]:
    """First cells of the table below a heading of README, as they stand between backquotes."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        yield from re.findall(r"`([^`]+)`", cell)


def test_the_configuration_table_has_every_setting_once() -> None:
    settings = (PROJECT / "astraconsole" / "settings.py").read_text()
    read = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', settings))
    told = list(rows_of("Configuration"))
    assert sorted(told) == sorted(read)


def every_error(kind: type[errors.AstraError] = errors.AstraError) -> Iterator[type[errors.AstraError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


def test_the_page_of_errors_has_every_code_with_its_status() -> None:
    page = (PROJECT / "docs" / "errors.md").read_text()
    told = {(code, int(status)) for code, status in re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)}
    assert told == {(error.code, error.status) for error in every_error()}


def test_the_page_of_the_protocol_has_every_message_and_the_version() -> None:
    page = (PROJECT / "docs" / "agent-protocol.md").read_text()
    messages, versions = page.split("## All messages\n")[1].split("## Versions\n")
    kinds = (protocol.ToAgent, protocol.FromAgent, protocol.Request, protocol.Answer)
    tags = {message.__struct_config__.tag for kind in kinds for message in get_args(kind)}
    assert tags <= set(re.findall(r"`(\w+)`", messages))
    assert re.findall(r"^\| (\d+) \|", versions.split("\n## ")[0], re.MULTILINE)[-1] == str(protocol.VERSION)


CLI_PAGE = (PROJECT / "docs" / "cli.md").read_text()


def every_command(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    for verb in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), verb)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, f"{name} {verb}")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{name} {verb}", command


EVERY_COMMAND = dict(every_command(astra, "astra"))


def test_the_page_of_the_command_line_has_every_command() -> None:
    told = re.findall(r"`(astra [a-z ]+)`", CLI_PAGE.split("## All commands\n")[1])
    assert sorted(told) == sorted(EVERY_COMMAND)


def test_every_command_prints_json_where_it_is_asked_to() -> None:
    without = {name for name, command in EVERY_COMMAND.items() if "--json" not in options_of(command)}
    assert without == {"astra completion", "astra slurm sbatch"}  # a script of the shell; its own reading of --json


def options_of(command: click.Command) -> set[str]:
    return {name for one in command.params if isinstance(one, click.Option) for name in one.opts}


@pytest.mark.parametrize(("group", "table"), [("astraeus", ASTRAEUS), ("slurm", SLURM), ("", TOP)])
def test_a_list_of_commands_says_what_each_says_of_itself(group: str, table: dict[str, Verb]) -> None:
    found = astra.get_command(click.Context(astra), group) if group else astra
    assert isinstance(found, click.Group)
    for name, verb in table.items():
        command = found.get_command(click.Context(found), name)
        assert command is not None
        assert command.help is not None
        said = " ".join(command.help.split())
        assert said.startswith(verb.help)
        assert verb.help.endswith(".")
        assert said.removeprefix(verb.help)[:1] in ("", " "), f"{name}: not the whole sentence"


def test_readmes_table_of_verbs_has_none_that_there_is_not() -> None:
    verbs = {verb for verb in rows_of("The command line") if not verb.startswith("astra ")}
    assert {"run", "logs"} <= verbs <= set(ASTRAEUS)


@pytest.mark.parametrize("verb", ["run", "logs"])
def test_the_page_of_the_command_line_has_every_option_with_its_default(verb: str) -> None:
    table = CLI_PAGE.split(f"| option of `{verb}` |")[1].split("\n\n")[0]
    told = {
        tuple(re.findall(r"`([^`]+)`", names)): default
        for names, default in re.findall(r"^\| (`-.*?) \| (.*?) \|", table, re.MULTILINE)
    }
    command = astra.get_command(click.Context(astra), "astraeus")
    assert isinstance(command, click.Group)
    found = command.get_command(click.Context(command), verb)
    assert found is not None
    options = {tuple(one.opts): one.default for one in found.params if isinstance(one, click.Option)}
    assert set(told) == set(options)
    for names, default in options.items():
        if isinstance(default, str | int) and not isinstance(default, bool):
            assert told[names] == f"`{default}`"


def test_the_page_of_the_command_line_has_every_exit_code_and_variable() -> None:
    assert [int(code) for code in re.findall(r"^\| `(\d+)` \|", CLI_PAGE, re.MULTILINE)] == list(Exit)
    assert set(ENVIRONMENT.values()) <= set(re.findall(r"`(ASTRA_\w+)`", CLI_PAGE))


def written_commands() -> Iterator[tuple[str, str]]:
    """(where, line) of every call of our commands in the documents and on the console's pages."""
    for page in PAGES:
        for line in code_blocks(page.read_text()).splitlines():
            yield page.name, line
    for template in (PROJECT / "templates").rglob("*.html"):
        text = re.sub(r"\{\{.*?\}\}", "x", re.sub(r"\{%.*?%\}", "", template.read_text()))
        for line in re.findall(r"(?:^|<pre[^>]*>)(astra(?:-agent)? [^<\n]*)", text, re.MULTILINE):
            yield template.name, line


def parse(group: click.Command, words: list[str]) -> None:
    """As click would: raises for a verb or an option that there is not. Nothing is run."""
    context = click.Context(group)
    while isinstance(group, click.Group) and (words or not group.invoke_without_command):
        _, found, words = group.resolve_command(context, words)
        assert found is not None
        group, context = found, click.Context(found)
    group.make_parser(context).parse_args(list(words))


def test_every_command_that_is_written_down_is_understood() -> None:
    seen = set()
    for where, line in written_commands():
        words = shlex.split(line.removeprefix("ExecStart="), comments=True)
        name = Path(words[0]).name if words else ""
        if name not in COMMANDS or "=" in words[0]:
            continue
        try:
            parse(COMMANDS[name], words[1:])
        except click.ClickException as error:
            pytest.fail(f"{where}: {line}: {error.format_message()}")
        seen.add((where, name))
    assert {("README.md", "astra"), ("deploy.md", "astra-agent"), ("add.html", "astra-agent")} <= seen
    assert {name for where, name in seen if where == "_same_run.html"} == {"astra"}


TARGETS = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)


def test_every_target_of_make_has_one_recipe() -> None:
    assert sorted(TARGETS) == sorted(set(TARGETS))


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(TARGETS)
    named = {
        target for page in PAGES for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert {"run", "test", "check", "setup", "bench"} <= named <= targets


def test_every_link_between_documents_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(PROJECT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_path_that_the_documents_name_exists() -> None:
    parts = r"astraconsole|runs|machines|docs|tests|bench|templates|static"
    broken = []
    for page in PAGES:
        for path in re.findall(rf"`((?:{parts})/[\w./-]*)`", page.read_text()):
            if not any((PROJECT / path).parent.glob(f"{(PROJECT / path).name}*")):
                broken.append(f"{page.relative_to(PROJECT)}: {path}")
    assert broken == []
