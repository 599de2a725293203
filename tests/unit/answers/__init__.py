"""Right and wrong answers, one module a lesson: `CONTEXT` (label -> what the checker gets besides) and `answers()`.

`answers()` yields (label, right answer, [(wrong answer, words of the diagnosis it must get), ...]). A tuple that stands for
several answers is a `Several`.
"""


class Several(tuple):
    """The answers of a checker that takes more than one."""
