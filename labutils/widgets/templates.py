"""The template viewer: messages in; rendered text, control tokens and ids out."""

from labutils import views
from labutils.widgets.explorer import Explorer, text_box

CONTROL = "#cde8f6"     # behind a control token; the brackets say it too


def segments(tokenizer, ids: list[int]) -> list[tuple[int | None, list[int]]]:
    """Cut ids at their control tokens: (control token or None, the ordinary ids up to the next one)."""
    control = set(tokenizer.all_special_ids)
    pieces: list[tuple[int | None, list[int]]] = []
    for number in ids:
        if number in control:
            pieces.append((number, []))
        else:
            if not pieces:
                pieces.append((None, []))
            pieces[-1][1].append(number)
    return pieces


def rendered(tokenizer, ids: list[int]) -> views.Table:
    """Return ids as a table, one row for each control token and the text after it; ⏎ stands for a line end."""
    rows = []
    for control, rest in segments(tokenizer, ids):
        name = "" if control is None else f"⟦{tokenizer.convert_ids_to_tokens(control)}⟧"
        text = tokenizer.decode(rest).replace("\n", "⏎")
        rows.append((views.Cell(name, CONTROL if name else "", bold=True), text,
                     views.Cell(" ".join(map(str, ([] if control is None else [control]) + rest)))))
    found = sum(control is not None for control, _ in segments(tokenizer, ids))
    return views.table(("control token", "text after it", "ids"), rows, f"{len(ids)} tokens, {found} of them control tokens")


def chat_template(tokenizer, user: str, system: str = "Answer in one word.", assistant: str = "") -> Explorer:
    """Explore a chat template: the messages and every switch on one side, what the model would get on the other.

    An empty `assistant` is left out; a filled one is the last message, to be continued or answered.
    """
    import ipywidgets

    def switch(value: bool, description: str):
        return ipywidgets.Checkbox(value=value, description=description, indent=False,
                                   layout=ipywidgets.Layout(width="auto"))

    controls = {
        "system": text_box(system, "system"),
        "user": text_box(user, "user"),
        "assistant": text_box(assistant, "assistant"),
        "own_system": switch(False, "send the system message"),
        "generation_prompt": switch(True, "add_generation_prompt"),
        "continue_final": switch(False, "continue_final_message"),
        "sanitize": switch(False, "sanitize_control_tokens"),
    }

    def draw(system: str, user: str, assistant: str, own_system: bool, generation_prompt: bool, continue_final: bool,
             sanitize: bool) -> views.Table:
        messages = [{"role": "system", "content": system}] if own_system else []
        messages.append({"role": "user", "content": user})
        if assistant:
            messages.append({"role": "assistant", "content": assistant})
        encoding = tokenizer.apply_chat_template(
            messages, add_generation_prompt=generation_prompt, continue_final_message=continue_final,
            sanitize_control_tokens=sanitize, return_dict=True)
        return rendered(tokenizer, encoding["input_ids"])

    return Explorer(draw, controls, "What does the model get to read?")
