"""Which lines of a log look like errors. Pure, and linear in the length of a line.

The six patterns are `error`, `exception`, `traceback`, `NCCL WARN`, `CUDA error` and `killed`: whole words, or the end
of a class name (`ValueError`). Numbers called error (`error: 0.03`) and the absence of errors (`no error`, `killed: 0`)
are no errors. A line may hold several; one that counts is enough.
"""

import re

_CANDIDATE = re.compile(
    r"(?<![A-Za-z0-9_])(?<!with the )(?<!trial and )"
    r"(?i:error|exception|traceback|killed|nccl[ \t]+warn)(?![A-Za-z0-9_])"
    r"|(?<=[A-Za-z0-9])(?P<class>Error|Exception|Killed)(?![A-Za-z0-9_])"
)
_AROUND = 48  # characters looked at on each side of a candidate
_NUMBER = r"[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|0+|nan|inf)(?![A-Za-z0-9_.])"
_PERCENT = r"\d+(?:\.\d+)?[ \t]?%"
_NOTHING = r"(?:none|null|nil|<nil>|undefined|false|off|no|n/a|ok|\[\]|\{\}|\"\"|'')"
_VALUE_ENDS = r"(?=[ \t]*(?:$|[,;|)\]}%]|[A-Za-z_]+[:=]))"
_KINDS = (
    r"(?:fatal|critical|serious|cuda|nccl|gpu|ecc|runtime|syntax|network|single|other|more|new|such|known|unhandled)"
)
_NOT_BEFORE = re.compile(
    r"(?:(?<![A-Za-z0-9_.])(?:not|without|never|(?:no|0|zero)(?:[ \t]+(?:jobs|tasks|runs|workers|processes))?)"
    rf"[ \t]+(?:(?:an?|any)[ \t]+)?(?:{_KINDS}[ \t]+)?"  # no error, without any error, 0 jobs killed
    r"|(?:^|[\s\"'=(\[])--?[A-Za-z0-9_-]*-)$",  # --ignore-error
    re.IGNORECASE,
)
_VALUE = rf"[\"']?[ \t]*[:=,]?[ \t]*{_NUMBER}"  # error: 0.03, killed, 0
_DENIAL = (
    rf"[\"']?[ \t]*[:=]?[ \t]*{_PERCENT}{_VALUE_ENDS}"  # test error: 5%
    rf"|[\"']?[ \t]*[:=][ \t]*{_NOTHING}{_VALUE_ENDS}"
    r"|[ \t]+(?:rate|count|bound|bar|margin|norm|budget|threshold|tolerance)s?(?![A-Za-z0-9_])"  # error rate
    r"|[ \t]+(?:free|correction)(?![A-Za-z0-9_])"
    r"|[ \t]+(?:code|status)[ \t]*[:=]?[ \t]*0+(?![A-Za-z0-9_.])"
    r"|-(?:free|rate|prone|correct|toleran|bar|handl|count|budget|level)"
    r"|\.[a-z]|@"  # error.log, error@5
)
_NOT_AFTER = re.compile(rf"{_VALUE}|{_DENIAL}", re.IGNORECASE)
# `ERROR: 0 GPUs found` begins with a level, not with a name: only a value that is all there is makes it a metric.
_NOT_AFTER_LEVEL = re.compile(rf"{_VALUE}{_VALUE_ENDS}|{_DENIAL}", re.IGNORECASE)
# `ValueError: 0.5 is too small` is an error, `MeanSquaredError: 0.5` a metric, `KeyError: 0` an error again.
_NOT_AFTER_CLASS = re.compile(
    rf"[\"']?[ \t]*[:=][ \t]*(?:{_NUMBER}|{_PERCENT}|false|null){_VALUE_ENDS}"
    r"|\.(?:py|java|kt|scala|cs|js|ts|go|rs|rb|c|cc|cpp|h|hpp|log|txt|json|md|html)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)


def looks_like_error(text: str) -> bool:
    """Of a line's text, colours stripped."""
    return any(_counts(text, match) for match in _CANDIDATE.finditer(text))


def contains_error(text: str) -> bool:
    """What *Errors only* keeps: the letters `error` anywhere, so it also keeps `0 errors` and drops `Killed`."""
    return "error" in text.lower()


def _counts(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(match.start() - _AROUND, 0) : match.start()], text[match.end() : match.end() + _AROUND]
    is_path = before.endswith("/") and not after.startswith(":")  # /data/error/part-0
    if is_path or _NOT_BEFORE.search(before):
        return False
    if match["class"]:
        return before.endswith("Key") or _NOT_AFTER_CLASS.match(after) is None
    return (_NOT_AFTER_LEVEL if match.group() == "ERROR" else _NOT_AFTER).match(after) is None
