"""sbatch's options, and how words are read as options: as getopt_long does, with unique abbreviations. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Takes(Enum):
    VALUE = "value"
    NOTHING = "nothing"
    MAYBE = "maybe"  # a value only with `=`


class Option(NamedTuple):
    short: str
    takes: Takes
    ignored: str  # why it has no effect here; "" where it has one


@dataclass(frozen=True)
class Given:
    """One option as it was given. `line` of the script; 0: on the command line; `text` as written."""

    name: str
    value: str
    line: int
    text: str

    @property
    def where(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


@dataclass(frozen=True)
class Unknown:
    """A word that cannot be read as an option, and why. `wrong`: sbatch has such an option, but not so."""

    line: int
    text: str
    why: str
    wrong: bool = True

    @property
    def where(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


_LOG = "a worker's output is its log: astra astraeus logs"
_MAIL = "no mail is sent"
_ACCOUNT = "use is counted for the workspace"
_PARTITION = "a partition is not a pool: name one with --pool"
_LAYOUT = "tasks are not bound to sockets and cores"
_QUEUE = "the workspace's priority, weight and quota decide"
_FEATURES = "features are Slurm's: choose a GPU model (--gres=gpu:MODEL:N) or a pool (--pool)"
_MACHINES = "machines have other names here: use --pool"
_CONTAINER = "give drives and credentials in a specification file instead"
_PROGRAM = "it changes what sbatch itself does"


def _table(takes: Takes, names: str, ignored: str = "") -> dict[str, Option]:
    """`names`: `long` or `long/short`, between spaces."""
    pairs = [entry.partition("/") for entry in names.split()]
    return {long: Option(short, takes, ignored) for long, _, short in pairs}


V, N, M = Takes.VALUE, Takes.NOTHING, Takes.MAYBE
# Those with an effect: `meaning.py` gives it.
CARRIED: Mapping[str, Option] = {
    **_table(V, "array/a begin/b chdir/D container-image cpus-per-gpu cpus-per-task/c dependency/d export gpus/G"),
    **_table(V, "gpus-per-node gpus-per-socket gpus-per-task gres job-name/J mem mem-per-cpu mem-per-gpu nodes/N"),
    **_table(V, "ntasks/n ntasks-per-gpu ntasks-per-node sockets-per-node time/t wrap"),
    **_table(N, "hold/H help/h parsable test-only wait/W"),
    **_table(M, "exclusive"),
}
SBATCH: Mapping[str, Option] = {
    **CARRIED,
    **_table(V, "output/o error/e open-mode", _LOG),
    **_table(V, "input/i", "a worker has no standard input"),
    **_table(V, "mail-type mail-user", _MAIL),
    **_table(V, "account/A wckey acctg-freq profile comment extra mcs-label", _ACCOUNT),
    **_table(V, "partition/p", _PARTITION),
    **_table(V, "qos/q priority", _QUEUE),
    **_table(M, "nice", _QUEUE),
    **_table(V, "reservation", "there are no reservations"),
    **_table(V, "licenses/L bb bbf", "licences and burst buffers are not counted"),
    **_table(V, "constraint/C prefer cluster-constraint batch", _FEATURES),
    **_table(V, "nodelist/w exclude/x nodefile/F", _MACHINES),
    **_table(V, "clusters/M", "choose the cluster with astra use ORG/WORKSPACE@CLUSTER"),
    **_table(N, "requeue", "a failed run is not started again; preempted work always is"),
    **_table(N, "no-requeue", "preempted work is always queued again"),
    **_table(V, "signal", "no signal is sent ahead of the limit: SIGTERM at the limit, then SIGKILL"),
    **_table(V, "deadline time-min delay-boot", "the time limit decides"),
    **_table(V, "tmp", "disk space is not counted"),
    **_table(V, "ntasks-per-socket ntasks-per-core cores-per-socket threads-per-core", _LAYOUT),
    **_table(V, "extra-node-info/B mincpus hint distribution/m core-spec/S thread-spec cpu-freq gpu-freq", _LAYOUT),
    **_table(V, "gpu-bind mem-bind tres-bind gres-flags network", _LAYOUT),
    **_table(V, "switches segment", "machines are chosen by room, not by their network"),
    **_table(N, "contiguous spread-job use-min-nodes consolidate-segments", "machines are chosen by room"),
    **_table(N, "overcommit/O oversubscribe/s", "a worker has its cores and GPUs to itself"),
    **_table(M, "no-kill/k", "a lost machine's worker ends the run"),
    **_table(V, "wait-all-nodes kill-on-invalid-dep", "workers on several machines always start together"),
    **_table(V, "export-file uid gid", "name variables with --export=NAME=value"),
    **_table(M, "get-user-env propagate", "name variables with --export=NAME=value"),
    **_table(V, "tres-per-task power", "say it with --gpus-per-task and --cpus-per-task"),
    **_table(V, "container container-id container-name container-save container-mounts container-env", _CONTAINER),
    **_table(V, "container-workdir", "use --chdir"),
    **_table(N, "container-mount-home no-container-mount-home container-writable container-readonly", _CONTAINER),
    **_table(N, "container-remap-root no-container-remap-root container-entrypoint", _CONTAINER),
    **_table(N, "no-container-entrypoint reboot stepmgr ignore-pbs", "it has no meaning here"),
    **_table(M, "x11 oom-kill-step", "it has no meaning here"),
    **_table(N, "quiet/Q verbose/v version/V usage", _PROGRAM),
}
# What only this command line has; of a script's directives they are no options.
OURS: Mapping[str, Option] = {**_table(V, "image pool name code"), **_table(N, "dry-run json")}
COMMAND_LINE: Mapping[str, Option] = {**SBATCH, **OURS}
# Older words that sbatch still takes.
ALIASES: Mapping[str, str] = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}

# Environment variable → option: between the script and the command line.
VARIABLES: Mapping[str, str] = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
}


@dataclass(frozen=True)
class Words:
    """Words read as options, up to the first that is none; `rest` begins with it."""

    given: list[Given]
    unknown: list[Unknown]
    rest: list[str]


def read_words(words: Sequence[str], line: int = 0, table: Mapping[str, Option] = SBATCH) -> Words:
    """As getopt_long reads them: `--opt=value`, `--opt value`, `-n4`, `-n 4`, clusters of flags, `--` as the end."""
    left, result = list(words), Words([], [], [])
    while left:
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            _read_long(word, left, line, table, result)
        elif word.startswith("-") and word != "-":
            _read_cluster(word[1:], left, line, table, result)
        else:
            left.insert(0, word)
            break
    result.rest.extend(left)
    return result


def read_variables(environment: Mapping[str, str]) -> list[Given]:
    """The options that the environment gives."""
    return [
        Given(name, environment[variable], 0, f"{variable}={environment[variable]}")
        for variable, name in VARIABLES.items()
        if variable in environment
    ]


def _read_long(word: str, left: list[str], line: int, table: Mapping[str, Option], result: Words) -> None:
    prefix, equals, value = word[2:].partition("=")
    prefix = ALIASES.get(prefix, prefix)
    names = [prefix] if prefix in table else sorted(name for name in table if name.startswith(prefix))
    if len(names) != 1:
        follows = not equals and left and not left[0].startswith("-") and line
        text = f"{word} {left.pop(0)}" if follows else word
        why = f"could be {', '.join('--' + name for name in names[:4])}" if names else "is no option of sbatch"
        result.unknown.append(Unknown(line, text, why, wrong=bool(names)))
        return
    takes = table[names[0]].takes
    if takes is Takes.NOTHING and equals:
        result.unknown.append(Unknown(line, word, "takes no value"))
    elif takes is Takes.VALUE and not equals:
        _take(names[0], word, left, line, result)
    else:
        result.given.append(Given(names[0], value, line, word))


def _read_cluster(letters: str, left: list[str], line: int, table: Mapping[str, Option], result: Words) -> None:
    """`-n4`, `-Hn4`: flags, until one that takes the rest of the word or the next one."""
    by_letter = {option.short: name for name, option in table.items() if option.short}
    for position, letter in enumerate(letters):
        name = by_letter.get(letter)
        if name is None:
            result.unknown.append(Unknown(line, f"-{letter}", "is no option of sbatch", wrong=False))
            return
        rest = letters[position + 1 :]
        if table[name].takes is Takes.NOTHING:
            result.given.append(Given(name, "", line, f"-{letter}"))
        elif rest or table[name].takes is Takes.MAYBE:
            result.given.append(Given(name, rest, line, f"-{letter}{rest}"))
            return
        else:
            _take(name, f"-{letter}", left, line, result)
            return


def _take(name: str, word: str, left: list[str], line: int, result: Words) -> None:
    if left:
        value = left.pop(0)
        result.given.append(Given(name, value, line, f"{word} {value}"))
    else:
        result.unknown.append(Unknown(line, word, "needs a value"))


def ignored_of(given: Sequence[Given]) -> Iterator[tuple[Given, str]]:
    """Options without an effect, and why."""
    for option in given:
        if option.name in SBATCH and SBATCH[option.name].ignored:
            yield option, SBATCH[option.name].ignored
