"""Which lines of a log look like errors. Pure, and linear in the length of a line.

The six patterns are `error`, `exception`, `traceback`, `NCCL WARN`, `CUDA error` and `killed`: whole words, or the end
of a class name (`ValueError`). Numbers called error (`error: 0.03`) and the absence of errors (`no error`, `killed: 0`)
are no errors. A line may hold several; one that counts is enough.
"""

import re

_CANDIDATE = re.compile(
    r"(?<![A-Za-z0-9_])(?i:error|exception|traceback|killed|nccl warn)(?![A-Za-z0-9_])"
    r"|(?<=[A-Za-z0-9])(?P<class>Error|Exception|Killed)(?![A-Za-z0-9_])"
)
_AROUND = 48  # characters looked at on each side of a candidate
_NUMBER = r"[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|0+|nan|inf)(?![A-Za-z0-9_.])"
_VALUE_ENDS = r"(?=[ \t]*(?:$|[,;|)\]}%]|[A-Za-z_]+[:=]))"
_NOT_BEFORE = re.compile(
    r"(?:(?<![A-Za-z0-9_.])(?:not|without|never|(?:no|0|zero)(?:[ \t]+(?:jobs|tasks|runs|workers|processes))?)"
    r"[ \t]+(?:an[ \t]+)?"  # no error, 0 jobs killed
    r"|(?:^|[\s\"'=(\[])--?[A-Za-z0-9_-]*-)$",  # --ignore-error
    re.IGNORECASE,
)
_NOT_AFTER = re.compile(
    rf"[\"']?[ \t]*[:=,]?[ \t]*{_NUMBER}"  # error: 0.03, killed, 0
    rf"|[\"']?[ \t]*[:=][ \t]*(?:none|null|nil|false|\"\"|''){_VALUE_ENDS}"
    r"|[ \t]+(?:rate|count|bound|bar|margin|norm|budget)s?(?![A-Za-z0-9_])"  # error rate
    r"|-(?:free|rate|prone|correct|toleran|bar|handl|count|budget|level)"
    r"|\.[a-z]",  # error.log
    re.IGNORECASE,
)
# `ValueError: 0.5 is too small` is an error, `MeanSquaredError: 0.5` a metric: the value must be all there is.
_NOT_AFTER_CLASS = re.compile(rf"[ \t]*[:=][ \t]*{_NUMBER}{_VALUE_ENDS}", re.IGNORECASE)


def looks_like_error(text: str) -> bool:
    """Of a line's text, colours stripped."""
    return any(_counts(text, match) for match in _CANDIDATE.finditer(text))


def contains_error(text: str) -> bool:
    """What *Errors only* keeps: the letters `error` anywhere, so it also keeps `0 errors` and drops `Killed`."""
    return "error" in text.lower()


def _counts(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(match.start() - _AROUND, 0) : match.start()], text[match.end() : match.end() + _AROUND]
    not_after = _NOT_AFTER_CLASS if match["class"] else _NOT_AFTER
    return _NOT_BEFORE.search(before) is None and not_after.match(after) is None
