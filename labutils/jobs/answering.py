"""One chunk of lines through an engine: what every worker does, wherever it runs."""

from labutils.jobs.engines import Engine
from labutils.jobs.errors import JobError
from labutils.jobs.lines import BadLine, Chunk, parse

SHOWN = 80      # characters of a rejected line that the rejects file repeats


def answer(engine: Engine, chunk: Chunk) -> list[dict]:
    """Return one entry per line that is not blank, in order: an answer (it has `text`) or a reject (it has `reason`).

    Raises JobError where the engine does not return one answer per row.
    """
    entries: list[dict | None] = []     # None where an answer belongs
    rows = []
    for number, raw in enumerate(chunk.lines, chunk.first):
        try:
            row = parse(raw, number)
        except BadLine as bad:
            entries.append({"line": number, "reason": str(bad), "begins": _beginning(raw)})
            continue
        if row is not None:
            rows.append({**row, "line": number})
            entries.append(None)
    answered = (_entry(row, one) for row, one in zip(rows, _answers(engine, rows), strict=True))
    return [next(answered) if entry is None else entry for entry in entries]


def _beginning(raw: bytes | None) -> str:
    return "" if raw is None else raw[: 4 * SHOWN].decode("utf-8", "replace").rstrip("\r\n")[:SHOWN]


def _answers(engine: Engine, rows: list[dict]) -> list[dict]:
    answers = engine.answer(rows) if rows else []
    if len(answers) != len(rows):
        raise JobError(f"The engine returned {len(answers)} answers for {len(rows)} prompts. That is a fault of the engine.")
    return answers


def _entry(row: dict, answer: dict) -> dict:
    entry = {"line": row["line"]}
    if "id" in row:
        entry["id"] = row["id"]
    if answer.get("error"):
        return {**entry, "reason": answer["error"]}
    return {**entry, **{name: answer[name] for name in ("text", "prompt_tokens", "new_tokens", "finish")}}
