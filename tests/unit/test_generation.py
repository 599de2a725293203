"""`generate` gives each prompt what it would get alone: on many architectures, on adversarial prompts, when memory runs out."""

import copy
import gc
import logging
import random
import weakref

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.checkpoints import checkpoint
from labutils.errors import SettingError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tests.unit.tiny as tiny  # noqa: E402
from labutils.generation import fastlinear, generate, own, proof  # noqa: E402
from labutils.generation.rows import Row  # noqa: E402
from labutils.generation.slots import Slots  # noqa: E402

DRAWN = random.Random(0)
LENGTHS = (3, 17, 1, 9, 9, 30, 5, 12)
PROMPTS = [[DRAWN.randrange(2, 99) for _ in range(length)] for length in LENGTHS]
PROMPTS.append(PROMPTS[3])  # a duplicate
SHARED = list(range(11, 22))
NEW = [5, 12, 20, 3, 9, 14, 1, 8, 7]


@pytest.fixture(scope="module")
def words():
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def llama():
    return tiny.model(tiny.PLAIN["llama"])


@pytest.fixture(scope="module")
def chat():
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))


def run(model, tokenizer, prompts=PROMPTS, new=NEW, **settings):
    return generate(model, tokenizer, prompts, max_new_tokens=new, progress=False, **settings)


def ids_of(result):
    return [answer.ids for answer in result]


@pytest.fixture(scope="module")
def expected(llama):
    return [tiny.alone(llama, prompt, new) for prompt, new in zip(PROMPTS, NEW, strict=True)]


# --- equal to alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny.PLAIN)
def test_slots_give_each_prompt_what_it_gets_alone(name, words):
    model = tiny.model(tiny.PLAIN[name])
    for prompts in (PROMPTS, [SHARED + prompt for prompt in PROMPTS]):
        wanted = [tiny.alone(model, prompt, new) for prompt, new in zip(prompts, NEW, strict=True)]
        result = run(model, words, prompts, batch_size=4)
        assert result.method == "own", result
        assert ids_of(result) == wanted
        assert len({tuple(ids) for ids in wanted}) > 5  # the models do not all say the same


@pytest.mark.parametrize("name", tiny.OTHER)
def test_groups_give_each_prompt_what_it_gets_alone(name, words):
    config, reason = tiny.OTHER[name]
    model = tiny.model(config)
    wanted = [tiny.alone(model, prompt, new) for prompt, new in zip(PROMPTS, NEW, strict=True)]
    result = run(model, words, batch_size=4)
    assert result.method == "groups" and reason in result.notes[0], result
    assert ids_of(result) == wanted
    with pytest.raises(SettingError, match="method='own' does not fit"):
        run(model, words, method="own")


def test_continuous_batching_gives_the_same(llama, words, expected):
    result = run(llama, words, method="continuous", cache_bytes=2**20)
    assert result.method == "continuous" and ids_of(result) == expected
    assert result.cache_bytes <= 2**20


@pytest.mark.parametrize("rearrange", (False, True))
def test_chat_model_as_if_alone(chat, tokenizer, rearrange):
    prompts = [
        "The capital of France is", [{"role": "user", "content": "What is the capital of Japan?"}], "Once upon a time",
        [{"role": "user", "content": [{"type": "text", "text": "What is the "}, {"type": "text",
                                                                                 "text": "capital of Japan?"}]}],
    ]
    result = run(chat, tokenizer, prompts, 8, rearrange=rearrange)
    asked = tokenizer.apply_chat_template(prompts[1], add_generation_prompt=True, return_dict=False)
    read = [tokenizer(prompts[0])["input_ids"], asked, tokenizer(prompts[2])["input_ids"]]
    for answer, ids in zip(result, read, strict=False):
        made = tiny.alone(chat, ids, 8)
        assert answer.ids == [one for one in made if one != tokenizer.eos_token_id]
        assert (answer.prompt_tokens, answer.new_tokens) == (len(ids), len(made))
    assert result[3] == result[1]
    assert result.texts[1].startswith("The capital of Japan is Tokyo")
    assert any("rearranged" in note for note in result.notes) == rearrange


def test_half_precision_answers_too(words):
    model = tiny.model(tiny.PLAIN["qwen2"]).to(torch.bfloat16)
    result = run(model, words)
    assert result.method == "own" and [len(ids) for ids in ids_of(result)] == NEW


def test_trust_is_not_given_to_a_wrong_mask(monkeypatch, words):
    monkeypatch.setattr(Slots, "_piece_mask", lambda self, number, window: None)
    model = tiny.model(tiny.PLAIN["mistral, window 8"])
    assert "logits are off by" in proof.trust(model).reason
    assert run(model, words).method == "groups"


def test_long_prompts_are_read_in_pieces(llama, words, expected, monkeypatch):
    monkeypatch.setitem(labutils.generation.STEP_TOKENS, "cpu", 7)
    assert ids_of(run(llama, words)) == expected


def test_few_slots_are_cut_anew_when_the_long_prompts_are_done(llama, words, expected):
    one_row = max(len(prompt) + new for prompt, new in zip(PROMPTS, NEW, strict=True)) * proof.trust(llama).token_bytes
    result = run(llama, words, cache_bytes=one_row)
    assert ids_of(result) == expected
    assert 1 < result.peak_rows < len(PROMPTS) and result.cache_bytes <= one_row


def test_finished_rows_make_room_at_once(llama, words):
    result = run(llama, words, [[5], [6], [7], [8]], [20, 2, 2, 2], batch_size=2)
    assert result.steps == 20  # three short ones pass beside the long one


# --- order, duplicates, kinds of prompts ------------------------------------------------------------------------------


def test_order_and_duplicates(llama, words, expected):
    order = list(range(len(PROMPTS)))
    DRAWN.shuffle(order)
    result = run(llama, words, (PROMPTS[at] for at in order), [NEW[at] for at in order], batch_size=3)
    assert ids_of(result) == [expected[at] for at in order]
    same = run(llama, words, [PROMPTS[0]] * 5, 4)
    assert ids_of(same) == [expected[0][:4]] * 5 and same.new_tokens == 20


def test_text_ids_and_tensors_are_the_same_prompt(llama, words):
    ids = [5, 6, 7]
    result = run(llama, words, ["w5 w6 w7", ids, torch.tensor(ids), torch.tensor([ids]), tuple(ids)], 4)
    assert ids_of(result) == [tiny.alone(llama, ids, 4)] * 5


BAD = {
    "": "it is empty", "a\ud800b": "character 1 is half of a surrogate pair (U+D800)", (): "it is empty", None: "NoneType",
    3: "int is not a prompt", (1, 99): "the id 99, and the model's vocabulary is 0 to 98", (-1,): "the id -1",
    (True,): "tuple is not a prompt", b"x": "bytes is not a prompt", (2,) * 96: "its 96 tokens leave no position",
    ("w1",): "tuple is not a prompt",
}


def test_a_bad_prompt_is_named_and_the_rest_unharmed(llama, words, expected):
    prompts = [one for pair in zip(PROMPTS + PROMPTS, BAD, strict=False) for one in pair]
    result = run(llama, words, prompts, 3)
    for at, sentence in zip(range(1, 2 * len(BAD), 2), BAD.values(), strict=True):
        assert result[at].finish == "error" and result[at].error.startswith(f"Prompt {at}: ") and sentence in result[at].error
        assert (result[at].text, result[at].ids, result[at].new_tokens) == ("", [], 0)
    for at in range(0, 2 * len(BAD), 2):
        assert result[at].ids == tiny.alone(llama, prompts[at], 3)
    assert result.finishes() == {"length": len(BAD), "error": len(BAD)}


def test_messages_a_text_model_cannot_read(chat, tokenizer, words, llama):
    bad = [[{"role": "user", "content": [{"type": "image", "url": "x"}]}], [{"role": "user"}], [{"content": "x"}],
           [{"role": "user", "content": None}], [{"role": "user", "content": "\udc00"}], [{"role": "user", "content": ["x"]}]]
    said = run(chat, tokenizer, bad, 1).errors
    wanted = ("a part of type 'image'", "no content", "no role", "content of type NoneType", "surrogate", "part of type 'str'")
    assert len(said) == len(bad) and all(part in one for part, one in zip(wanted, said, strict=True))
    assert "no chat template" in run(llama, words, [[{"role": "user", "content": "x"}]], 1).errors[0]
    assert "no chat template" in run(llama, words, ["w5"], 1, chat=True).errors[0]


def test_the_window_ends_an_answer(llama, words):
    result = run(llama, words, [[5] * 90, [5] * 10], 10)
    assert [(answer.finish, answer.new_tokens) for answer in result] == [("window", 6), ("length", 10)]
    assert result[0].ids == tiny.alone(llama, [5] * 90, 6)


def test_no_prompts_and_only_bad_ones(llama, words):
    assert run(llama, words, [], 3).answers == []
    assert run(llama, words, [""], 3).finishes() == {"error": 1}


@pytest.mark.parametrize("prompts, sentence", (
    ("text", "[text]"), ([{"role": "user", "content": "x"}], "[messages]"), ([1, 2], "[ids]"), ({"a": 1}, "dictionary"),
    (5, "int"),
))
def test_what_is_no_list_of_prompts(llama, words, prompts, sentence):
    with pytest.raises(SettingError) as caught:
        run(llama, words, prompts, 3)
    assert sentence in str(caught.value)


def test_rendered_templates_are_seen(chat, tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    found = run(chat, tokenizer, [messages, rendered, "Hi", rendered], 1, chat=True)
    assert len({answer.prompt_tokens for answer in found}) == 1 and len({tuple(ids) for ids in ids_of(found)}) == 1


def test_no_second_bos(llama):
    with_bos = tiny.tokenizer()
    with_bos.add_special_tokens({"bos_token": "w1"})
    from tokenizers.processors import TemplateProcessing

    with_bos.backend_tokenizer.post_processor = TemplateProcessing(single="w1 $A", special_tokens=[("w1", 1)])
    assert with_bos("w5")["input_ids"] == [1, 5]
    assert [answer.prompt_tokens for answer in run(llama, with_bos, ["w5", "w1 w5"], 1)] == [2, 2]


# --- ends -------------------------------------------------------------------------------------------------------------


def test_eos_lists_and_honest_counts(llama, words, expected):
    ends = [expected[2][4], expected[5][2]]
    for method in ("own", "groups"):
        for answer, made in zip(run(llama, words, eos=ends, method=method), expected, strict=True):
            cut = next((at for at, one in enumerate(made) if one in ends), None)
            assert answer.ids == made[:cut]
            assert answer.finish == ("length" if cut is None else "eos")
            assert answer.new_tokens == (len(made) if cut is None else cut + 1)


def test_stop_strings_across_token_borders(chat, tokenizer):
    question = [{"role": "user", "content": "What is the capital of Japan?"}]
    for stop, text in (("apan is To", "The capital of J"), (["zzz", "is"], "The capital of Japan "),
                       (".", "The capital of Japan is Tokyo")):
        answer = run(chat, tokenizer, [question], 12, stop=stop)[0]
        assert (answer.text, answer.finish) == (text, "stop")
        assert stop[-1] in tokenizer.decode(answer.ids) and answer.new_tokens == len(answer.ids)
    special = run(chat, tokenizer, [question], 12, stop="<|im_end|>", eos=None)[0]
    assert (special.text, special.finish) == ("The capital of Japan is Tokyo.", "stop")


def test_a_missing_end_of_turn_is_noted(chat, tokenizer):
    before = chat.generation_config.eos_token_id
    try:
        chat.generation_config.eos_token_id = 0
        notes = run(chat, tokenizer, ["Hi"], 1).notes
    finally:
        chat.generation_config.eos_token_id = before
    assert any("Pass eos=[0, 2]" in note for note in notes)


# --- sampling and penalties -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ({}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05, "top_k": 0}))
def test_draws_are_those_of_the_prompt_alone(llama, words, settings):
    seeds = [40 + at for at in range(len(PROMPTS))]
    for method, batch in (("own", 3), ("own", 9), ("groups", 4)):
        result = run(llama, words, do_sample=True, seed=40, method=method, batch_size=batch, **settings)
        for answer, prompt, new, seed in zip(result, PROMPTS, NEW, seeds, strict=True):
            torch.manual_seed(seed)
            assert answer.ids == tiny.alone(llama, prompt, new, do_sample=True, **settings)


def test_seeds_belong_to_prompts_not_to_places(llama, words):
    straight = run(llama, words, do_sample=True, seed=list(range(9)))
    turned = run(llama, words, PROMPTS[::-1], NEW[::-1], do_sample=True, seed=list(range(9))[::-1])
    assert ids_of(straight) == ids_of(turned)[::-1]


@pytest.mark.parametrize("settings", (
    {"repetition_penalty": 1.8}, {"no_repeat_ngram_size": 2}, {"suppress_tokens": [3, 50, 51]}, {"begin_suppress_tokens": [9]},
    {"min_new_tokens": 4, "eos_token_id": 60}, {"min_length": 12, "eos_token_id": 60}, {"bad_words_ids": [[44], [3, 5]]},
    {"repetition_penalty": 1.3, "do_sample": True, "temperature": 0.5},
))
def test_the_models_own_settings_hold_and_see_no_pad(words, settings):
    model = tiny.model(tiny.PLAIN["llama"])
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    for method in ("own", "groups"):
        result = run(model, words, seed=[3] * len(PROMPTS), method=method)
        for answer, prompt, new in zip(result, PROMPTS, NEW, strict=True):
            torch.manual_seed(3)
            made = tiny.alone(model, prompt, new)
            assert answer.ids == (made[:-1] if answer.finish == "eos" else made)


@pytest.mark.parametrize("name, value", (
    ("num_beams", 4), ("num_return_sequences", 2), ("guidance_scale", 1.5), ("typical_p", 0.9),
))
def test_what_is_not_followed_is_refused(words, name, value):
    model = tiny.model(tiny.PLAIN["llama"])
    setattr(model.generation_config, name, value)
    with pytest.raises(SettingError, match=f"generation_config.{name} is {value}"):
        run(model, words)


@pytest.mark.parametrize("settings, sentence", (
    ({"max_tokens": 3}, "max_tokens (here: max_new_tokens)"), ({"method": "fast"}, "method is 'fast'"),
    ({"batch_size": 0}, "batch_size is 0"), ({"stop": ""}, "stop is ''"), ({"stop": [""]}, "none of them empty"),
    ({"new": 0}, "max_new_tokens of prompt 0 is 0"), ({"new": [1, 2]}, "2 numbers for 9 prompts"), ({"seed": [1]}, "1 numbers"),
    ({"method": "continuous", "do_sample": True}, "a seed for each prompt"), ({"eos": ["x"]}, "eos is"),
))
def test_arguments_that_make_no_sense(llama, words, settings, sentence):
    with pytest.raises(SettingError) as caught:
        run(llama, words, **settings)
    assert sentence in str(caught.value)


# --- memory -----------------------------------------------------------------------------------------------------------


class Scarce:
    """Lets a model's forward run out of memory with more than `most` tokens at once, or with the token `marked`."""

    def __init__(self, monkeypatch, model, most=10**9, marked=None):
        self.calls, self.alive, forward = [], [], model.forward

        def short(*args, **kwargs):
            ids = kwargs["input_ids"]
            if self.calls and self.calls[-1]() is not None:
                self.alive.append(len(self.calls))
            if ids.numel() > most or (marked is not None and (ids == marked).any()):
                held = torch.zeros(10)
                self.calls.append(weakref.ref(held))
                raise torch.OutOfMemoryError("out of memory: tried to allocate 20 GiB")
            return forward(*args, **kwargs)

        proof.trust(model)
        monkeypatch.setattr(model, "forward", short)


@pytest.mark.parametrize("method", ("own", "groups"))
def test_back_off_keeps_what_is_done_and_says_so(llama, words, expected, monkeypatch, method):
    scarce = Scarce(monkeypatch, llama, most=34)
    result = run(llama, words, [*PROMPTS, *PROMPTS, *[[7]] * 40], [*NEW, *NEW, *[6] * 40], method=method)
    assert ids_of(result)[:18] == expected * 2 and len(scarce.calls) > 0
    assert any("memory ran out with" in note for note in result.notes)
    assert not scarce.alive  # the failed step's tensors are gone before the next begins


def test_a_prompt_that_never_fits_is_given_up_by_name(llama, words, monkeypatch):
    prompts = [[2 + at] * 5 for at in range(8)]
    wanted = [tiny.alone(llama, prompt, 4) for prompt in prompts]
    assert not any(98 in made for made in wanted)
    Scarce(monkeypatch, llama, marked=98)
    for method in ("own", "groups"):
        result = run(llama, words, [*prompts[:3], [98, 3], *prompts[3:]], 4, method=method)
        assert result[3].finish == "error" and result[3].error.startswith("Prompt 3: memory ran out even alone")
        assert ids_of(result)[:3] + ids_of(result)[4:] == wanted
    assert result.peak_rows > 1


def test_other_errors_of_the_model_are_not_swallowed(llama, words, monkeypatch):
    proof.trust(llama)

    def broken(*args, **kwargs):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(llama, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run(llama, words)


# --- the caller's things ----------------------------------------------------------------------------------------------


def test_nothing_of_the_callers_is_changed(words, capfd, caplog):
    model = tiny.model(tiny.PLAIN["llama"])
    model.train()
    model.model.layers[0].eval()
    words.padding_side = "right"
    before = (copy.deepcopy(model.generation_config.to_dict()), copy.deepcopy(model.config.to_dict()), words.pad_token,
              words.padding_side, [m.training for m in model.modules()], model.config._attn_implementation,
              torch.get_rng_state().tolist(), {name: set(m.__dict__) for name, m in model.named_modules()})
    with caplog.at_level(logging.WARNING):
        for method in ("own", "groups"):
            run(model, words, do_sample=True, method=method, rearrange=True)
    after = (model.generation_config.to_dict(), model.config.to_dict(), words.pad_token, words.padding_side,
             [m.training for m in model.modules()], model.config._attn_implementation, torch.get_rng_state().tolist(),
             {name: set(m.__dict__) for name, m in model.named_modules()})
    assert after == before
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_an_interrupt_leaves_the_model_as_it_was(llama, words):
    def stop(index, answer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(llama, words, on_answer=stop, rearrange=True)
    assert llama.config._attn_implementation == "sdpa" and "forward" not in llama.lm_head.__dict__
    assert ids_of(run(llama, words))[0]


def test_answers_are_passed_on_as_they_come(llama, words, capsys):
    seen = {}
    result = generate(llama, words, PROMPTS, max_new_tokens=NEW, on_answer=seen.__setitem__)
    assert [seen[at] for at in range(9)] == result.answers
    assert "tokens/s" in capsys.readouterr().err
    assert "9 answers (9 length), 79 new tokens in" in str(result) and "method own, up to 9 rows" in repr(result)


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts, count", (
    ([[1] * 9 + [2], [1] * 9 + [3, 4]], 9), ([[1] * 20, [1] * 10], 9), ([[1] * 7 + [2], [1] * 7 + [3]], 0),
    ([[1] * 20, [2] * 20], 0), ([list(range(12)), list(range(12))], 11),
))
def test_shared_beginning(prompts, count):
    assert own.shared_beginning(prompts * 5) == count
    assert own.shared_beginning(prompts) == own.shared_beginning(prompts[:1] * 99 + [[0]]) == 0  # nothing saved, or shared


def test_need_counts_prompt_and_answer():
    assert Row(0, [1, 2, 3], 4, False, 0).need == 7


def test_rearranged_products_are_the_same_and_go_away(llama):
    inputs = torch.randn(40, 32)
    plain = llama.lm_head(inputs)
    with pytest.raises(ValueError), fastlinear.rearranged(llama, 32) as taken:
        assert taken == sum(layer.weight.nbytes for layer in fastlinear.linears(tiny.model(tiny.PLAIN["llama"])))
        assert torch.allclose(llama.lm_head(inputs), plain, rtol=1e-4, atol=1e-5)
        assert torch.equal(llama.lm_head(inputs[:1]), torch.nn.functional.linear(inputs[:1], llama.lm_head.weight))
        raise ValueError
    gc.collect()
    assert not any("forward" in module.__dict__ for module in llama.modules())


def test_hooked_layers_keep_their_forward(llama):
    handle = llama.lm_head.register_forward_hook(lambda *_: None)
    try:
        assert llama.lm_head not in fastlinear.linears(llama)
    finally:
        handle.remove()


# --- the choice -------------------------------------------------------------------------------------------------------


def test_on_other_devices_the_faster_method_is_measured(llama, words, expected, monkeypatch):
    package = labutils.generation
    monkeypatch.setattr(package, "SAMPLE", 2)
    monkeypatch.setattr(package._Run, "kind", property(lambda self: "cuda", lambda self, value: None), raising=False)
    result = run(llama, words, cache_bytes=2**20)
    assert ids_of(result) == expected and result.method in ("own", "continuous")
    assert any("because on 2 prompts each own made" in note for note in result.notes)
    sampled = run(llama, words, cache_bytes=2**20, do_sample=True)  # continuous batching has no seeds: nothing to measure
    assert sampled.method == "own" and not any("because on" in note for note in sampled.notes)
