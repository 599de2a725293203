"""What goes wrong is said in one sentence, with the input that caused it and the cure."""


class LabError(Exception):
    """An error a learner can act on: the message names what was wrong, with which input, and what to do."""


class SettingError(LabError, ValueError):
    """A setting (environment variable or argument) has a value that does not exist."""


class CheckpointError(LabError):
    """A checkpoint could not be found, fetched, converted or written."""
