"""The type of ``fedcrab.recover`` for type checkers: a package that can be called.

Type checkers do not support modules that can be called. So :mod:`fedcrab` declares ``fedcrab.recover`` as a
value of the class below: called, it is :func:`fedcrab.recover.run.recover`; its attributes are the public
names of the package. Only type checkers import this file. In annotations, write ``fedcrab.Recovery`` and
``fedcrab.Step``, or import the name from ``fedcrab.recover``.
"""

import fedcrab.recover as package
from fedcrab.recover.run import recover as main_function


class CallablePackage:
    """Every public name of :mod:`fedcrab.recover`; a test compares the two."""

    __call__ = staticmethod(main_function)

    crab = staticmethod(package.crab)
    federaser = staticmethod(package.federaser)
    fedrecover = staticmethod(package.fedrecover)
    finetune = staticmethod(package.finetune)
    replay = staticmethod(package.replay)
    retrain = staticmethod(package.retrain)
    retrain_few = staticmethod(package.retrain_few)
    subtract_and_distil = staticmethod(package.subtract_and_distil)

    ask_at = staticmethod(package.ask_at)
    resumable = staticmethod(package.resumable)

    CRAB_PRESETS = package.CRAB_PRESETS
    AnswerFolder = package.AnswerFolder
    Answers = package.Answers
    Capped = package.Capped
    Distiller = package.Distiller
    Pair = package.Pair
    Progress = package.Progress
    RecordedFleet = package.RecordedFleet
    Recovery = package.Recovery
    ReplayState = package.ReplayState
    SavedSteps = package.SavedSteps
    Step = package.Step


recover = CallablePackage()
