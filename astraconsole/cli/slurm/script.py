"""What a file given to sbatch says: its directives, with line numbers, and what only looks like one. Pure.

Three kinds of files: a batch script; a shell script whose job is in a here-document; a shell command that calls sbatch.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from astraconsole.cli.slurm.options import CARRIED, COMMAND_LINE, Given, Unknown, read_words

MAGIC = "#SBATCH"
HETEROGENEOUS = "heterogeneous jobs are not supported: submit their parts as runs"
SCRIPT_MAX = 4 * 1024**2  # bytes: Slurm's own limit
_HERE_DOCUMENT = re.compile(r"<<(-?)\s*(['\"\\]?)([A-Za-z_][A-Za-z0-9_]*)\2?")
_CALL = re.compile(r"(?:^|[;&|(`{]|\bdo\b|\bthen\b|\belse\b)\s*sbatch(?=\s|$)")
_EXPANSION = re.compile(r"(?<!\\)(?:\$\w|\$[({@*#?$!-]|`)")
_COMMENTED = re.compile(r"\s*(#+\s*SBATCH)\s*(-.*)", re.IGNORECASE)
_OTHERS = re.compile(r"(#(?:PBS|BSUB|\$))\s+(-.*)")  # of other schedulers
_TEXTS = {"job-name", "chdir", "container-image", "export", "wrap"}  # options whose values are no quantities
_HET = re.compile(r"\s*(?:hetjob|packjob)\b", re.IGNORECASE)


class Refused(Exception):
    """The file or command line cannot be made a run of. `faults`: one sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


@dataclass(frozen=True)
class NotRead:
    """A directive that has no effect: `label` names it, `why` says why."""

    line: int
    label: str
    why: str


@dataclass
class Script:
    """`body`: what is run; None where it is in another file, `calls`. `note`: how the directives were found."""

    body: str | None
    given: list[Given] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    not_read: list[NotRead] = field(default_factory=list)
    note: str = ""
    calls: list[str] = field(default_factory=list)
    cannot_run: str = ""  # why it can be read but not submitted


def read_script(text: str) -> Script:
    """Raises Refused with every fault of the file's shape."""
    _refuse_what_no_script_has(text)
    lines = text.splitlines()
    script = _directives(lines, 1)
    if not (script.given or script.unknown):
        found = _in_here_document(lines) or _called(lines)
        if found is not None:
            return found
    if not text.startswith("#!"):
        raise Refused(["line 1: a batch script begins with #! and the path of its interpreter"])
    script.body = text
    return script


def _refuse_what_no_script_has(text: str) -> None:
    if not text.strip():
        raise Refused(["the script is empty"])
    if "\0" in text:
        raise Refused(["the script holds a NUL character"])
    if "\r\n" in text:
        raise Refused(["the script has DOS line ends (CR LF): sbatch takes none; dos2unix removes them"])
    if len(text.encode()) > SCRIPT_MAX:
        raise Refused([f"the script is longer than {SCRIPT_MAX // 1024**2} MiB"])


def _directives(lines: Sequence[str], first: int) -> Script:
    """Those before the first command, and those that come too late. `first`: the number of the first line."""
    faults: list[str] = []
    script, ended, skip_to = Script(None), False, ""
    for number, line in enumerate(lines, first):
        if skip_to:
            skip_to = "" if line.lstrip("\t") == skip_to or line == skip_to else skip_to
        elif line.startswith(MAGIC) and ended:
            late = line.removeprefix(MAGIC).strip()
            script.not_read.append(NotRead(number, f"{late} (after the first command)", "sbatch stops reading there"))
        elif line.startswith(MAGIC):
            faults += _read_directive(line.removeprefix(MAGIC), number, script)
        elif commented := _COMMENTED.match(line):
            label = re.sub(r"\s+", " ", commented[1])
            script.not_read.append(NotRead(number, label, f"a comment, no directive: {commented[2]}"))
        elif other := _OTHERS.match(line):
            script.not_read.append(NotRead(number, other[1], f"another scheduler's: write #SBATCH for {other[2]}"))
        elif line.strip() and not line.lstrip().startswith("#"):
            ended = True
            here = _HERE_DOCUMENT.search(line)
            skip_to = here[3] if here else ""
    if faults:
        raise Refused(faults)
    return script


def _read_directive(text: str, number: int, script: Script) -> Iterator[str]:
    if _HET.match(text):
        yield f"line {number}: {text.strip()}: {HETEROGENEOUS}"
        return
    try:
        read = read_words(split_words(text), number)
    except ValueError as error:
        yield f"line {number}: {text.strip()}: {error}"
        return
    script.given += read.given
    script.unknown += read.unknown
    if read.rest:
        yield f"line {number}: {text.strip()}: {read.rest[0]} is no option: one begins with -"


def split_words(text: str) -> list[str]:
    """As sbatch splits a directive: quotes, backslashes, and `#`, outside of quotes, as the beginning of a comment."""
    words: list[str] = []
    word, quote, begun, escaped = "", "", False, False
    for letter in text:
        if escaped:
            word, begun, escaped = word + letter, True, False
        elif letter == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "'\"":
            quote, begun = letter, True
        elif letter == "#":
            break
        elif letter.isspace():
            words += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + letter, True
    if quote:
        raise ValueError(f"has an opening {quote} and no closing one")
    return words + ([word] if begun else [])


# ---- a shell script around the job ----


def _in_here_document(lines: Sequence[str]) -> Script | None:
    """The first here-document that is a job."""
    for number, line in enumerate(lines, 1):
        here = _HERE_DOCUMENT.search(line)
        if here is None or line.lstrip().startswith("#"):
            continue
        dash, quote, end = here.groups()
        inner = [text.lstrip("\t") if dash else text for text in _until(lines[number:], end, bool(dash))]
        if not any(text.startswith(MAGIC) for text in inner):
            continue
        script = _directives(inner, number + 1)
        script.body = "\n".join(inner) + "\n"
        script.note = "directives inside a here-document"
        expanded = [] if quote else [text.strip() for text in inner if _EXPANSION.search(text)]
        called = _CALL.search(line)
        if called:
            script.given += read_words(_call_words(line[called.end() : here.start()])).given
        _refuse_expansions(script)
        if expanded:
            script.cannot_run = f"its job is in a here-document that the shell fills in first ({expanded[0]})"
        return script
    return None


def _until(lines: Sequence[str], end: str, tabs: bool) -> Iterator[str]:
    for line in lines:
        if (line.lstrip("\t") if tabs else line) == end:
            return
        yield line


def _refuse_expansions(script: Script) -> None:
    """A value that the shell would fill in must not be read as something else; of a mere text it does not matter."""
    expanded = [given for given in script.given if "$" in given.value]
    faults = [given for given in expanded if given.name in CARRIED and given.name not in _TEXTS]
    if faults:
        raise Refused([f"{given.where}: the shell would fill this in first" for given in faults])
    if expanded:
        script.cannot_run = f"the shell fills in its options first ({expanded[0].text})"


def _called(lines: Sequence[str]) -> Script | None:
    """The options of the first call of sbatch, on one line or several."""
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    calls = [(line, call) for line in joined if not line.lstrip().startswith("#") and (call := _CALL.search(line))]
    if not calls:
        return None
    line, call = calls[0]
    read = read_words(_call_words(line[call.end() :]), 0, COMMAND_LINE)
    script = Script(None, read.given, read.unknown, note="options of a call of sbatch", calls=read.rest)
    _refuse_expansions(script)
    if len(calls) > 1 or any("$" in word for word in read.rest):
        script.cannot_run = "it is a shell script that calls sbatch"
    return script


def _call_words(text: str) -> list[str]:
    """Up to what ends the command."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()<>"):
                break
            words.append(word)
    except ValueError as error:
        raise Refused([f"sbatch {text.strip()}: {error}"]) from error
    return words
