"""What can keep a job from running or from going on."""

from labutils.errors import LabError


class JobError(LabError):
    """The job stopped. What it has answered is kept, and the same command goes on from there once the cause is gone."""


class InputError(JobError):
    """The job was refused before it began: its files or settings do not belong together."""
