"""Decoding by hand, as lesson 07 does it, beside the library; and user reports about generation, run against it.

Docstrings name the public report. Of reports about engines only what this library can show is tested.
"""

import itertools

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers.generation import logits_process as library  # noqa: E402

SMALL = {"vocab_size": 24, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5, **SMALL)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def logits():
    return torch.randn(3, 200, generator=torch.Generator().manual_seed(1)) * 3


@pytest.fixture
def ids():
    return torch.randint(0, 200, (3, 12), generator=torch.Generator().manual_seed(2))


def asked(tokenizer, question="What is the capital of Japan?"):
    return tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                         return_tensors="pt", return_dict=True)


# --- every step by hand, beside the library's class of the same name --------------------------------------------------


@pytest.mark.parametrize("T", (0.1, 0.7, 1.0, 2.5))
def test_temperature_equals_TemperatureLogitsWarper(logits, ids, T):
    assert torch.equal(logits / T, library.TemperatureLogitsWarper(T)(ids, logits))


@pytest.mark.parametrize("k", (1, 10, 199))
def test_top_k_equals_TopKLogitsWarper(logits, ids, k):
    ours = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)
    assert torch.equal(ours, library.TopKLogitsWarper(k)(ids, logits))


@pytest.mark.parametrize("p", (0.01, 0.5, 0.8, 0.95))
def test_top_p_equals_TopPLogitsWarper(logits, ids, p):
    shares, order = logits.softmax(-1).sort(descending=True)
    before = shares.cumsum(-1) - shares
    ours = logits.masked_fill((before >= p).scatter(-1, order, before >= p), -torch.inf)
    assert torch.equal(ours, library.TopPLogitsWarper(p)(ids, logits))


@pytest.mark.parametrize("share", (0.01, 0.1, 1.0))
def test_min_p_equals_MinPLogitsWarper(logits, ids, share):
    shares = logits.softmax(-1)
    ours = logits.masked_fill(shares < share * shares.max(-1, keepdim=True).values, -torch.inf)
    assert torch.equal(ours, library.MinPLogitsWarper(share)(ids, logits))


@pytest.mark.parametrize("penalty", (0.8, 1.3, 2.0))
def test_repetition_penalty_equals_RepetitionPenaltyLogitsProcessor(logits, ids, penalty):
    seen = logits.gather(1, ids)
    ours = logits.scatter(1, ids, torch.where(seen > 0, seen / penalty, seen * penalty))
    assert torch.equal(ours, library.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits))


def test_the_explorer_shapes_logits_as_generate_does(tiny):
    """Temperature first, then top-k, top-p, min-p: the distribution that `generate` draws from."""
    from labutils.widgets.sampling import shaped

    settings = {"temperature": 1.7, "top_k": 12, "top_p": 0.8, "min_p": 0.05}
    prompt = torch.arange(6)[None]
    output = tiny.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=1, **settings,
                           output_scores=True, output_logits=True, return_dict_in_generate=True)
    assert torch.equal(shaped(output.logits[0], **settings), output.scores[0])
    assert 1 < int(output.scores[0].isfinite().sum()) < 12
    assert torch.equal(shaped(output.logits[0]), output.logits[0])


def test_the_explorer_marks_what_is_cut(tiny, tokenizer):
    from labutils.widgets.sampling import kept_and_cut

    picture = kept_and_cut(["·a", "·b"], [0.7, 0.3], [1.0, 0.0], 1, 24)
    assert picture.description == "1 of 24 tokens can be drawn. Probability of the next token: ·a 1.000, ·b 0.000 (cut)"


def test_the_five_of_the_article_keep_four_with_a_rest_and_three_without():
    five = torch.tensor([[0.35, 0.25, 0.15, 0.10, 0.05]])
    whole = torch.cat([five, torch.full((1, 10), 0.01)], dim=1)
    cut = library.TopPLogitsWarper(0.8)
    assert [int(cut(None, shares.log()).isfinite().sum()) for shares in (whole, five)] == [4, 3]


# --- loops ------------------------------------------------------------------------------------------------------------


def test_the_greedy_loop_equals_generate(tiny):
    ids = torch.arange(5)[None]
    ours = ids
    with torch.inference_mode():
        for _ in range(20):
            ours = torch.cat([ours, tiny(ours).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(ours, tiny.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False))


@pytest.mark.parametrize("width", (1, 2, 4))
def test_beams_by_hand_equal_generate(tiny, width):
    prompt, steps = (3, 1, 4), 5
    alive = {prompt: 0.0}
    with torch.inference_mode():
        for _ in range(steps):
            grown = {}
            for words, score in alive.items():
                step = tiny(torch.tensor([words])).logits[0, -1].log_softmax(-1).tolist()
                grown |= {(*words, word): score + each for word, each in enumerate(step)}
            alive = dict(sorted(grown.items(), key=lambda each: -each[1])[:width])
    best = max(alive, key=alive.get)
    ids = torch.tensor([prompt])
    theirs = tiny.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=width, max_new_tokens=steps)
    assert theirs[0].tolist() == list(best)


def test_a_saved_num_beams_makes_beams_of_do_sample_false(tiny):
    ids = torch.arange(5)[None]
    how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 3, "return_dict_in_generate": True}
    before = tiny.generation_config.num_beams
    try:
        tiny.generation_config.num_beams = 3
        assert "Beam" in type(tiny.generate(ids, **how)).__name__
        assert "Beam" not in type(tiny.generate(ids, num_beams=1, **how)).__name__
    finally:
        tiny.generation_config.num_beams = before


def test_beams_and_returned_sequences_multiply_the_cache(tiny):
    """huggingface/transformers#22639: memory of beams or of several samples grows by their number."""
    ids = torch.arange(8)[None]
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "return_dict_in_generate": True}

    def rows(**more):
        return tiny.generate(ids, **how, **more).past_key_values.layers[0].keys.shape[0]

    assert rows(do_sample=False) == 1
    assert rows(do_sample=True, num_return_sequences=4) == rows(do_sample=False, num_beams=4) == 4


def test_an_unset_setting_comes_from_the_last_resort(chat):
    """The order of lesson 07: the call, the checkpoint, the library's defaults."""
    resolved, _ = chat._prepare_generation_config(None, max_new_tokens=5, do_sample=True)
    last = transformers.GenerationConfig._get_default_generation_params()
    assert (resolved.max_new_tokens, resolved.do_sample) == (5, True)       # the call
    assert resolved.eos_token_id == chat.generation_config.eos_token_id == 2     # the checkpoint
    assert resolved.top_k == last["top_k"] == 50 and resolved.num_beams == last["num_beams"] == 1
    assert last["max_length"] == 20


# --- guesses, stops, window -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ({"prompt_lookup_num_tokens": 8}, {"assistant_early_exit": 8}), ids=("lookup", "assisted"))
def test_guessing_writes_what_greedy_writes(chat, tokenizer, how):
    inputs = asked(tokenizer, "Repeat this sentence twice: The old mill by the river is now a library for the children.")
    plain = chat.generate(**inputs, do_sample=False, max_new_tokens=8)
    assert torch.equal(plain, chat.generate(**inputs, do_sample=False, max_new_tokens=8, **how))


def test_the_end_is_a_setting(chat, tokenizer):
    """Blaizzy/mlx-vlm#2112, vllm-project/vllm#1183, huggingface/transformers#23175: an end list without the end of turn."""
    inputs = asked(tokenizer)
    start = inputs["input_ids"].shape[1]
    new = {str(ends): chat.generate(**inputs, do_sample=False, max_new_tokens=12, eos_token_id=ends)[0, start:].tolist()
           for ends in (0, 2, [0, 2])}
    assert len(new["2"]) == 8 and new["[0, 2]"] == new["2"]
    assert len(new["0"]) == 12 and new["0"][:8] == new["2"]


def test_a_stop_string_overhangs_and_stays(chat, tokenizer):
    inputs = asked(tokenizer)
    new = chat.generate(**inputs, do_sample=False, max_new_tokens=12, stop_strings=["Jap"], tokenizer=tokenizer)
    assert tokenizer.decode(new[0, inputs["input_ids"].shape[1]:]) == "The capital of Japan"


def test_finished_rows_are_filled_up(chat, tokenizer):
    """NVIDIA/TensorRT-LLM#355, huggingface/transformers#31261: padding counted as written tokens."""
    texts = [tokenizer.decode(asked(tokenizer, question)["input_ids"][0])
             for question in ("What is the capital of Japan?", "How many days are in a week?")]
    batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    new = chat.generate(**batch, do_sample=False, max_new_tokens=12)[:, batch["input_ids"].shape[1]:]
    assert new.shape == (2, 9) and new[0, -2:].tolist() == [2, 2]
    assert [row.tolist().index(2) + 1 for row in new] == [8, 9]


def test_the_prompt_is_cut_off_by_tokens(chat, tokenizer):
    """The family of replies that are empty or start mid-word: text sliced by the length of the prompt's text."""
    inputs = asked(tokenizer)
    output, start = chat.generate(**inputs, do_sample=False, max_new_tokens=12)[0], inputs["input_ids"].shape[1]
    assert tokenizer.decode(output[start:], skip_special_tokens=True) == "The capital of Japan is Tokyo."
    prompt = tokenizer.decode(inputs["input_ids"][0])
    assert tokenizer.decode(output, skip_special_tokens=True)[len(prompt):] != "The capital of Japan is Tokyo."


def test_max_length_counts_the_prompt_and_max_new_tokens_does_not(tiny):
    ids = torch.arange(12)[None]
    how = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    assert tiny.generate(ids, max_length=15, **how).shape[1] == tiny.generate(ids, max_new_tokens=3, **how).shape[1] == 15
    with pytest.raises(ValueError, match="Input length of input_ids is 12, but `max_length` is set to 10"):
        tiny.generate(ids, max_length=10, **how)
    with pytest.warns(UserWarning, match="model-agnostic default `max_length`"):
        assert tiny.generate(ids, **how).shape[1] == 12 + 20


@pytest.mark.parametrize("kind, past", (("rotary", 18), ("table", "IndexError")))
def test_past_the_window(kind, past):
    """At the limit, one past it (the last token is never read) and two past it."""
    shape = {"rotary": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16, **SMALL)),
        "table": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=16, n_layer=1, n_head=2, n_positions=16, **SMALL))}
    model, ids = shape[kind]().eval(), torch.arange(12)[None]

    def length(new):
        try:
            return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new).shape[1]
        except IndexError:
            return "IndexError"

    assert [length(new) for new in (4, 5, 6)] == [16, 17, past]


# --- more reports -----------------------------------------------------------------------------------------------------


def test_temperature_zero_is_refused(tiny):
    """huggingface/transformers#36896, #31839: temperature 0 is not greedy here."""
    ids = torch.arange(5)[None]
    with pytest.raises(ValueError, match="strictly positive"):
        tiny.generate(ids, do_sample=True, temperature=0.0, max_new_tokens=2)


def test_names_of_other_layers_are_refused(tiny):
    """xorbitsai/inference#211: max_tokens belongs to the OpenAI interface."""
    with pytest.raises(ValueError, match="not used by the model: .'max_tokens'"):
        tiny.generate(torch.arange(5)[None], max_tokens=3)


@pytest.mark.parametrize("name, how", (
    ("contrastive-search", {"penalty_alpha": 0.6, "top_k": 4}),
    ("group-beam-search", {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}),
    ("dola", {"dola_layers": "high"}),
))
def test_methods_that_moved_to_remote_code_are_refused(tiny, name, how):
    with pytest.raises(ValueError, match=f"requires `trust_remote_code=True`.*transformers-community/{name}"):
        tiny.generate(torch.arange(5)[None], max_new_tokens=3, do_sample=False, **how)


def test_the_penalty_leaves_padding_alone_in_generate_but_not_by_hand(tiny):
    """huggingface/text-generation-inference#1765: pad ids counted as tokens that were seen."""
    row, pad = [3, 1, 4], 7
    scores = torch.ones(1, 24)
    by_hand = library.RepetitionPenaltyLogitsProcessor(2.0)(torch.tensor([[pad, pad, *row]]), scores)
    assert by_hand[0, pad] == 0.5
    how = {"do_sample": False, "max_new_tokens": 8, "repetition_penalty": 1.8, "pad_token_id": pad}
    alone = tiny.generate(torch.tensor([row]), attention_mask=torch.ones(1, 3, dtype=torch.long), **how)[0, 3:]
    padded = tiny.generate(torch.tensor([[pad, pad, *row]]), attention_mask=torch.tensor([[0, 0, 1, 1, 1]]), **how)[0, 5:]
    assert torch.equal(alone, padded)


def test_a_penalised_chat_does_not_end(chat, tokenizer):
    """huggingface/transformers#36642, text-generation-inference#1170: the end of a turn stands in the prompt."""
    inputs = asked(tokenizer)
    start = inputs["input_ids"].shape[1]
    new = chat.generate(**inputs, do_sample=False, max_new_tokens=12, repetition_penalty=1.5)[0, start:]
    assert tokenizer.eos_token_id in inputs["input_ids"] and tokenizer.eos_token_id not in new


def test_a_seed_covers_a_row_of_draws(tiny):
    """vllm-project/vllm#6197, ollama/ollama#1749: same seed, other text."""
    ids = torch.arange(5)[None]

    def draw():
        how = {"do_sample": True, "temperature": 3.0, "max_new_tokens": 12}
        return tiny.generate(ids, attention_mask=torch.ones_like(ids), **how).tolist()

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert draw() == first != second


def test_an_empty_prompt_is_an_error(tiny, tokenizer):
    """huggingface/transformers#3678, #13774."""
    assert tokenizer("", return_tensors="pt")["input_ids"].shape == (1, 0)
    with pytest.raises(RuntimeError):
        tiny.generate(torch.zeros(1, 0, dtype=torch.long), max_new_tokens=2, do_sample=False)


def test_a_streamer_takes_one_row(tiny, tokenizer):
    ids = torch.arange(10).reshape(2, 5)
    with pytest.raises(ValueError, match="only supports batch size 1"):
        tiny.generate(ids, attention_mask=torch.ones_like(ids), streamer=transformers.TextStreamer(tokenizer), max_new_tokens=2)


def test_positions_read_are_prompt_plus_new_minus_one(tiny):
    read = []
    hook = tiny.model.layers[-1].register_forward_hook(lambda layer, given, states: read.append(given[0].shape[1]))
    try:
        for prompt, new in itertools.product((3, 7), (1, 5)):
            read.clear()
            ids = torch.arange(prompt)[None]
            tiny.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new)
            assert read == [prompt] + [1] * (new - 1) and sum(read) == prompt + new - 1
    finally:
        hook.remove()


def test_logits_of_a_whole_prompt_cost_its_length(chat):
    """huggingface/transformers#30860, Blaizzy/mlx-vlm#1732: a hand-called forward makes logits of every position."""
    ids = torch.arange(128)[None]
    with torch.inference_mode():
        every, last = chat(ids).logits, chat(ids, logits_to_keep=1).logits
    assert (every.nbytes, last.nbytes) == (128 * 49152 * 4, 49152 * 4) == (25165824, 196608)
    assert chat(ids[:, :2]).logits.requires_grad      # allenai/longformer#36: kept in a list, it keeps its graph too
