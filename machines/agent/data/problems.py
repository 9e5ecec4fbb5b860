"""Why data is not there. Every message is a sentence for people, and holds no part of a credential.

DataProblem
├── SourceAway      it may come back: tried again soon, what is here stays
├── SourceChanged   it is not what it was when the copy was begun: begun anew
├── SourceRefused   trying again cannot help before somebody changes something
├── WrongChecksum   what was copied is not what was asked for
└── DiskFull        there is no room for it on this machine; nothing of it is kept
"""


class DataProblem(Exception):
    pass


class SourceAway(DataProblem):
    pass


class SourceChanged(DataProblem):
    pass


class SourceRefused(DataProblem):
    pass


class WrongChecksum(DataProblem):
    pass


class DiskFull(DataProblem):
    pass
