"""From the words after `sbatch` to a job: the script, its meaning and where it is submitted from."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraconsole.cli.slurm.job import Place, resolve_export
from astraconsole.cli.slurm.meaning import Meaning, understand
from astraconsole.cli.slurm.options import COMMAND_LINE, OURS, Given, Words, read_variables, read_words
from astraconsole.cli.slurm.script import HETEROGENEOUS, NotRead, Refused, Script, read_script


@dataclass(frozen=True)
class Submission:
    """`body`: the script; empty where it is not known (the file only calls sbatch with another). `cannot_run`: why."""

    meaning: Meaning
    body: str
    arguments: list[str]
    place: Place
    flags: frozenset[str]  # of --dry-run, --json, --parsable, --test-only, --wait, --help
    cannot_run: str


FLAGS = ("dry-run", "json", "parsable", "test-only", "wait", "help")


def read_submission(words: Sequence[str], environment: Mapping[str, str], user: str) -> Submission:
    """Raises Refused: a word that is no option, a file that cannot be read, a bad value."""
    read = read_words(words, 0, COMMAND_LINE)
    if read.unknown:
        raise Refused([f"{unknown.text} {unknown.why}" for unknown in read.unknown])
    if read.rest[:1] == [":"]:
        raise Refused([f": {HETEROGENEOUS}"])
    script, arguments = _script(read)
    given = _resolved([given for given in read.given if given.name not in OURS], environment)
    called: list[Given] = []
    if script.body is None:
        script, called, arguments = _called(script, read.rest[0], arguments)
    meaning = understand(script, read_variables(environment), [*called, *given])
    if "export" in meaning.options:
        _say_export(meaning)
    ours = {given.name: given.value for given in read.given}
    place = Place(
        image=_image(ours.get("image") or meaning.text("container-image") or environment.get("ASTRA_IMAGE", "")),
        user=user,
        pool=ours.get("pool", ""),
        name=ours.get("name", ""),
        code=ours.get("code", ""),
    )
    flags = frozenset(name for name in FLAGS if name in ours)
    return Submission(meaning, script.body or "", arguments, place, flags, script.cannot_run)


def _script(read: Words) -> tuple[Script, list[str]]:
    """The script and its arguments: of --wrap, a file, or standard input."""
    wrapped = [given.value for given in read.given if given.name == "wrap"]
    if wrapped and read.rest:
        raise Refused(["--wrap and a script exclude one another"])
    if wrapped:
        return Script(f"#!/bin/sh\n# of sbatch --wrap\n{wrapped[-1]}\n"), []
    if not read.rest:
        return read_script(sys.stdin.read()), []
    return read_script(_text(Path(read.rest[0]))), read.rest[1:]


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except UnicodeDecodeError as error:
        raise Refused([f"{path} is not UTF-8 text"]) from error
    except OSError as error:
        raise Refused([f"cannot read {path}: {error.strerror}"]) from error


def _called(outer: Script, file: str, arguments: list[str]) -> tuple[Script, list[Given], list[str]]:
    """The script that a file's call of sbatch names, beside that file; its options rank below the call's."""
    called = [given for given in outer.given if given.name not in OURS]
    if not outer.calls:
        return outer, [], arguments
    path = Path(file).parent / outer.calls[0]
    if not path.is_file():
        missing = Script(None, unknown=outer.unknown, note=outer.note, cannot_run=f"{path} is not here")
        missing.not_read.append(NotRead(0, outer.calls[0], "the script is not here: its own directives are not known"))
        return missing, called, arguments
    inner = read_script(_text(path))
    inner.unknown += outer.unknown
    inner.note, inner.cannot_run = outer.note, outer.cannot_run or inner.cannot_run
    return inner, called, [*outer.calls[1:], *arguments]


def _resolved(given: list[Given], environment: Mapping[str, str]) -> list[Given]:
    """`--export=NAME` takes the caller's value: of the command line only, as what a script names is in its worker."""
    return [
        Given(item.name, resolve_export(item.value, environment), item.line, item.text)
        if item.name == "export"
        else item
        for item in given
    ]


def _say_export(meaning: Meaning) -> None:
    without = [name for name in meaning.text("export").split(",") if name and "=" not in name and name != "NONE"]
    line = meaning.options["export"].line
    for name in without:
        why = "the submitter's environment stays here" if name in ("ALL", "NIL") else "it is not set here"
        meaning.ignored.append(NotRead(line, f"--export={name}", why))


def _image(text: str) -> str:
    """Pyxis writes `docker://host#team/image:tag`."""
    if text.endswith(".sqsh"):
        raise Refused([f"{text} is a file of enroot: name an image of a registry"])
    return text.removeprefix("docker://").replace("#", "/")
