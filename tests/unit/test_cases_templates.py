"""User reports about chat templates, run against the real library: the symptom and the cure.

Each docstring names the public report. What a report asks of a receipt (hash of the template and of the rendered
prompt) is tested with the receipt.
"""

import datetime
import shutil

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.checkpoints import checkpoint
from labutils.contracts import first_divergence, match

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MESSAGES = [{"role": "user", "content": "Hi"}]
HEADER = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def chat():
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint("chat"))


@pytest.fixture(scope="module")
def loaded():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))


@pytest.fixture
def tokenizer(loaded):
    """Return the chat tokenizer; what tests change about it is changed back."""
    names = ("chat_template", "bos_token", "eos_token", "padding_side")
    before = {name: getattr(loaded, name) for name in names}
    yield loaded
    for name, value in before.items():
        setattr(loaded, name, value)


def render(tokenizer, messages=MESSAGES, **how) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **how)


def test_no_template_is_an_error_and_none_is_invented(chat, tokenizer):
    """huggingface/transformers#33246, sgl-project/sglang#3385: a base model, or a file that was not copied."""
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="Cannot use chat template functions because tokenizer.chat_template is not"):
        render(tokenizer)
    assert [finding.what for finding in match(tokenizer, chat)] == ["no chat template"]
    # A model that was not trained on chats needs none.
    config = transformers.LlamaConfig(vocab_size=49152, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=1, num_key_value_heads=1, bos_token_id=0, eos_token_id=0)
    tokenizer.bos_token = tokenizer.eos_token = "<|endoftext|>"
    found = match(tokenizer, transformers.LlamaForCausalLM(config))
    assert found.ok and dict(found.checks)["template"] == "none, and no sign that the model needs one"


@pytest.mark.parametrize("prefill", ["The answer is ", "", "Paris"])
def test_prefill_stays_open(tokenizer, prefill):
    """huggingface/transformers#35433, vllm-project/vllm#9547, huggingface/transformers#40732: fixed in v5."""
    rendered = render(tokenizer, [*MESSAGES, {"role": "assistant", "content": prefill}], continue_final_message=True)
    assert rendered.endswith(HEADER + prefill)


def test_prefill_and_generation_prompt_exclude_each_other(tokenizer):
    """huggingface/transformers#35433, vllm-project/vllm#9547: with the prompt alone, a second header opens."""
    messages = [*MESSAGES, {"role": "assistant", "content": "Paris"}]
    with pytest.raises(ValueError, match="continue_final_message and add_generation_prompt are not compatible"):
        render(tokenizer, messages, continue_final_message=True, add_generation_prompt=True)
    rendered = render(tokenizer, messages, add_generation_prompt=True)
    assert rendered.count(HEADER) == 2 and rendered.endswith("Paris<|im_end|>\n" + HEADER)


def test_tools_that_the_template_does_not_read_vanish(tokenizer, recwarn):
    """ggml-org/llama.cpp#11866 and its family: compare what is rendered with and without."""

    def weather(city: str) -> str:
        """Return the weather.

        Args:
            city: name of the city
        """

    found = first_divergence(render(tokenizer, tools=[weather]), render(tokenizer), MESSAGES)
    assert not found and not recwarn.list
    # The cure: a template that reads them; then the renders differ.
    tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + tokenizer.chat_template
    found = first_divergence(render(tokenizer, tools=[weather]), render(tokenizer), MESSAGES)
    assert found.stage == "rendered text" and found.position == 0 and found.a.startswith('{"type": "function"')


def test_template_file_that_was_not_copied(chat, tokenizer, tmp_path):
    """huggingface/text-generation-inference#3247, modelscope/ms-swift#4358: save writes it beside the config."""
    whole, two, one = (tmp_path / name for name in ("whole", "two", "one"))
    tokenizer.save_pretrained(whole)
    assert sorted(path.name for path in whole.iterdir()) == ["chat_template.jinja", "tokenizer.json",
                                                             "tokenizer_config.json"]
    for folder, names in ((two, ("tokenizer.json", "tokenizer_config.json")), (one, ("tokenizer.json",))):
        folder.mkdir()
        for name in names:
            shutil.copy(whole / name, folder)
    load = transformers.AutoTokenizer.from_pretrained
    without = load(two)
    assert without.chat_template is None and without.eos_token == "<|im_end|>"
    bare = load(one)
    assert (bare.chat_template, bare.bos_token, bare.eos_token, bare.pad_token) == (None,) * 4
    assert [finding.what for finding in match(without, chat)] == ["no chat template"]
    assert {"no chat template", "tokenizer settings missing"} <= {finding.what for finding in match(bare, chat)}
    assert load(whole).chat_template == tokenizer.chat_template
    assert match(load(whole), chat).ok


@pytest.mark.parametrize(("messages", "error", "words"), [
    ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "TypeError", "can only concatenate str"),
    ([{"role": "user", "content": None}], "UndefinedError", "has no attribute 'content'"),
    ([{"role": "user"}], "UndefinedError", "has no attribute 'content'"),
    ([{"content": "Hi"}], "UndefinedError", "has no attribute 'role'"),
    ([], "ValueError", "Cannot apply chat template to an empty conversation"),
    ("Hi", "TypeError", "Chat messages should be dicts, dataclasses or pydantic models, but got 'H'"),
])
def test_content_that_a_text_template_cannot_take(tokenizer, messages, error, words):
    """Family of content types (chat_template_content_format of vLLM): the errors speak of strings and attributes."""
    with pytest.raises(Exception, match=words) as raised:
        render(tokenizer, messages)
    assert raised.type.__name__ == error


def test_template_without_concatenation_prints_the_list(tokenizer):
    """Family of content types (chat_template_content_format of vLLM): no error, a Python list in the prompt."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert render(tokenizer, parts) == "[{'type': 'text', 'text': 'Hi'}]"
    # The cure: join the text parts before rendering.
    flat = [{**m, "content": "".join(part["text"] for part in m["content"])} for m in parts]
    assert render(tokenizer, flat) == "Hi"


def test_template_applied_twice(tokenizer):
    """Family of templates applied twice: no warning; special ids inside the content give it away."""
    once = render(tokenizer, add_generation_prompt=True)
    wrapped = [{"role": "user", "content": once}]
    ids = [tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
           for messages in (MESSAGES, wrapped)]
    assert [len(row) for row in ids] == [31, 61]
    assert tokenizer.decode(ids[1]).count(HEADER) == 2
    special = set(tokenizer.all_special_ids)
    assert [bool(special & set(tokenizer(m[0]["content"])["input_ids"])) for m in (MESSAGES, wrapped)] == [False, True]
    # sanitize_control_tokens leaves only the template's own markers as special tokens; it needs tokenize=True.
    clean = tokenizer.apply_chat_template(wrapped, add_generation_prompt=True, sanitize_control_tokens=True)
    assert clean["input_ids"].count(tokenizer.bos_token_id) == 3
    assert ids[1].count(tokenizer.bos_token_id) == 6
    with pytest.raises(ValueError, match="`sanitize_control_tokens=True` requires `tokenize=True`"):
        render(tokenizer, wrapped, sanitize_control_tokens=True)


def test_template_with_a_date_differs_by_the_day(tokenizer):
    """Family of templates with strftime_now: golden token counts change; find it in the template's text."""
    assert "strftime_now" not in tokenizer.chat_template
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}"
    before = datetime.datetime.now()
    rendered = render(tokenizer)
    assert rendered in {day.strftime("%d %b %Y") for day in (before, datetime.datetime.now())}


def test_batch_of_chats_needs_padding_and_its_side(tokenizer):
    """Family of chats in a batch: padding=True, and the side is the tokenizer's default."""
    chats = [MESSAGES, [{"role": "user", "content": "Hi there you"}]]
    with pytest.raises(ValueError, match="you should probably activate truncation and/or padding with 'padding=True'"):
        tokenizer.apply_chat_template(chats, return_tensors="pt")

    def mask():
        batch = tokenizer.apply_chat_template(chats, return_tensors="pt", padding=True, add_generation_prompt=True)
        return batch["attention_mask"][0].tolist()

    assert tokenizer.padding_side == "right" and mask()[0] == 1 and mask()[-1] == 0
    tokenizer.padding_side = "left"
    assert mask()[0] == 0 and mask()[-1] == 1
