"""Batched generation over files: JSON Lines in, JSON Lines out, the same bytes however often the run was killed.

    from labutils import jobs
    jobs.run("prompts.jsonl", "answers.jsonl", jobs.TransformersEngine("chat"))

The input is cut into chunks of so many lines. One chunk after the other is parsed and answered, by this process, by
several (`workers`) or by a Ray cluster (`labutils.jobs.on_ray`), and written in the order of the input. A journal beside
the output says after every commit how far all files are, so a run that was killed goes on at the last commit. Importing
this module needs neither torch nor Ray.
"""

from labutils.jobs.engines import Engine, TransformersEngine, VllmEngine
from labutils.jobs.errors import InputError, JobError
from labutils.jobs.running import Summary, run

__all__ = ["Engine", "InputError", "JobError", "Summary", "TransformersEngine", "VllmEngine", "run"]
