"""User reports about padding, masks and generation, run against `labutils.generation`. Docstrings name the public report."""

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.errors import SettingError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tests.unit.tiny as tiny  # noqa: E402
from labutils.generation import generate  # noqa: E402

SHORT = "The capital of France is"
LONG = "Once upon a time, in a small town by the sea, there was a little girl who had"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def both(chat, tokenizer):
    """Return the batch of the first two reports, answered once, with a tokenizer that pads on the right."""
    assert tokenizer.padding_side == "right" and tokenizer.pad_token == tokenizer.eos_token
    return generate(chat, tokenizer, [SHORT, LONG], max_new_tokens=8, progress=False)


@pytest.fixture
def words():
    return tiny.tokenizer()


@pytest.fixture
def llama():
    return tiny.model(tiny.PLAIN["llama"])


def test_right_padding_tokenizer_does_no_harm(chat, tokenizer, both):
    """huggingface/transformers#23401: nonsense for the shorter prompts of a batch."""
    assert both[0].text == " Paris.\n\nThe answer is:"
    for prompt, answer in zip((SHORT, LONG), both, strict=True):
        assert answer.ids == tiny.alone(chat, tokenizer(prompt)["input_ids"], 8)


def test_pad_that_equals_eos_does_no_harm(tokenizer, both):
    """huggingface/transformers#25790: without a mask the short row says "a 2019-2"."""
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "2019" not in both.texts[0]


def test_half_precision_is_close_and_fp32_is_equal(words):
    """huggingface/transformers#26869, unslothai/unsloth#9708: logits drift with the batch in half precision."""
    prompts = [[3, 4, 5], list(range(20, 40))]
    model = tiny.model(tiny.PLAIN["llama"])
    result = generate(model, words, prompts, max_new_tokens=12, progress=False)
    assert [answer.ids for answer in result] == [tiny.alone(model, prompt, 12) for prompt in prompts]
    half = generate(model.to(torch.bfloat16), words, prompts, max_new_tokens=12, progress=False)
    assert half.method == "own"  # the first steps were compared with the model's own, within the tolerance for bfloat16


def test_no_pad_token_is_needed(words):
    """microsoft/DialoGPT#20: padding ruins generation. Prompts are grouped by exact length in tokens, or packed."""
    model, prompts = tiny.model(tiny.PLAIN["gpt2"]), ["w5", "w6 w7 w8", "w9"]
    assert words.pad_token is None
    for method, steps in (("own", 4), ("groups", 8)):
        result = generate(model, words, prompts, max_new_tokens=4, method=method, progress=False)
        assert [answer.prompt_tokens for answer in result] == [1, 3, 1] and result.steps == steps
        assert result[1].ids == tiny.alone(model, [6, 7, 8], 4)


def test_temperature_without_sampling(llama, words):
    """huggingface/transformers#36896, #31839: a temperature that nobody reads, and a temperature of 0."""
    with pytest.raises(SettingError, match="temperature would have no effect"):
        generate(llama, words, ["w5"], temperature=0.2)
    with pytest.raises(SettingError, match="temperature is 0; sampling needs more than 0"):
        generate(llama, words, ["w5"], do_sample=True, temperature=0)


@pytest.mark.parametrize("name", ("max_tokens", "n_predict", "num_predict"))
def test_names_of_other_layers(llama, words, name):
    """xorbitsai/inference#211: OpenAI's names passed to generate."""
    with pytest.raises(SettingError, match=rf"{name} \(here: max_new_tokens\)"):
        generate(llama, words, ["w5"], **{name: 3})


def test_tokens_count_up_to_the_first_end(chat, tokenizer):
    """NVIDIA/TensorRT-LLM#355, huggingface/transformers#31261: rows that are done were paid for their padding."""
    short, long = generate(chat, tokenizer, [[{"role": "user", "content": "What is the capital of Japan?"}], LONG],
                           max_new_tokens=16, progress=False)
    assert (short.finish, short.new_tokens) == ("eos", len(short.ids) + 1) and short.new_tokens < 12
    assert tokenizer.eos_token_id not in short.ids and (long.finish, long.new_tokens) == ("length", 16)


def test_missing_end_of_turn_runs_on_and_is_noted(chat, tokenizer):
    """Blaizzy/mlx-vlm#2112, vllm-project/vllm#1183, huggingface/transformers#23175: the model invents new turns."""
    question = [{"role": "user", "content": "What is the capital of Japan?"}]
    before = chat.generation_config.eos_token_id
    try:
        chat.generation_config.eos_token_id = 0
        wrong = generate(chat, tokenizer, [question], max_new_tokens=16, progress=False)
        right = generate(chat, tokenizer, [question], max_new_tokens=16, eos=[0, 2], progress=False)
    finally:
        chat.generation_config.eos_token_id = before
    assert wrong[0].finish == "length" and "Pass eos=[0, 2]" in str(wrong)
    assert right[0].finish == "eos" and right[0].text == "The capital of Japan is Tokyo."


def test_a_penalty_never_sees_padding(chat, tokenizer):
    """huggingface/text-generation-inference#1765: pad ids counted as seen tokens."""
    result = generate(chat, tokenizer, [SHORT, LONG], max_new_tokens=6, repetition_penalty=1.5, progress=False)
    for prompt, answer in zip((SHORT, LONG), result, strict=True):
        assert answer.ids == tiny.alone(chat, tokenizer(prompt)["input_ids"], 6, repetition_penalty=1.5)


def test_a_penalty_covers_the_prompts_end_of_turn(llama, words):
    """huggingface/transformers#36642, huggingface/text-generation-inference#1170: penalised replies do not end.

    The end token stands in the prompt, so the penalty holds it back: here as in model.generate.
    """
    free = generate(llama, words, [[5, 6, 7]], max_new_tokens=8, progress=False)[0].ids
    end = free[2]
    prompt = [end, 5, 6, 7]
    for penalty in (None, 20.0):
        made = tiny.alone(llama, prompt, 8, eos_token_id=end, **({"repetition_penalty": penalty} if penalty else {}))
        answer = generate(llama, words, [prompt], max_new_tokens=8, eos=end, repetition_penalty=penalty, progress=False)[0]
        assert answer.ids == [one for one in made if one != end]
    assert answer.finish == "length"


def test_empty_prompts_keep_their_place(llama, words):
    """huggingface/transformers#3678, #13774: an empty prompt crashes alone and makes nonsense in a batch."""
    result = generate(llama, words, ["", "w5", ""], max_new_tokens=3, progress=False)
    assert [answer.finish for answer in result] == ["error", "length", "error"]
    assert [error.partition(":")[0] for error in result.errors] == ["Prompt 0", "Prompt 2"]


def test_a_seed_belongs_to_a_prompt(llama, words):
    """vllm-project/vllm#6197, ollama/ollama#1749: same seed, other text, because the batch was another."""
    def drawn(prompts, seeds):
        result = generate(llama, words, prompts, max_new_tokens=9, do_sample=True, seed=seeds, progress=False)
        return [answer.ids for answer in result]

    together = drawn(["w5", "w6 w7", "w5"], [1, 2, 3])
    torch.rand(7)  # draws of others do not matter
    assert together == drawn(["w5"], [1]) + drawn(["w6 w7"], [2]) + drawn(["w5"], [3])
    assert together[0] != together[2]


def test_answers_stay_with_their_prompts(llama, words):
    """deepspeedai/DeepSpeed-MII#401, InternLM/lmdeploy#2395, mead-ml/mead-baseline#677: sorted and not put back."""
    prompts = ["w5 w6 w7", "w8", "w5 w6 w7", "w9 w10", "w8"]
    wanted = [tiny.alone(llama, words(prompt)["input_ids"], 4) for prompt in prompts]
    for kind in (list, tuple, iter):
        assert [one.ids for one in generate(llama, words, kind(prompts), max_new_tokens=4, progress=False)] == wanted


def test_back_off_happens_outside_the_handler(llama, words, monkeypatch):
    """NVIDIA/Model-Optimizer#1385, awslabs/keys_values#8, petuum/adaptdl#90: retries fail though smaller."""
    wanted = [tiny.alone(llama, [5 + at], 6) for at in range(12)]
    generate(llama, words, ["w5"], max_new_tokens=1, progress=False)
    forward, sizes = llama.forward, []

    def scarce(*args, **kwargs):
        sizes.append(kwargs["input_ids"].numel())
        if sizes[-1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(*args, **kwargs)

    monkeypatch.setattr(llama, "forward", scarce)
    result = generate(llama, words, [[5 + at] for at in range(12)], max_new_tokens=6, progress=False)
    assert [answer.ids for answer in result] == wanted
    assert [size for size in sizes if size > 4] == [12, 6] and "went on with 3" in str(result)


def test_beams_and_several_samples_are_refused(llama, words):
    """huggingface/transformers#22639: the cache grows with num_beams and num_return_sequences."""
    for name in ("num_beams", "num_return_sequences"):
        setattr(llama.generation_config, name, 4)
        with pytest.raises(SettingError, match=f"{name} is 4"):
            generate(llama, words, ["w5"])
        setattr(llama.generation_config, name, None)


def test_the_answer_is_cut_in_tokens(chat, tokenizer):
    """Slicing the prompt's characters off the decoded whole leaves nothing, or starts in the middle of a word."""
    answer = generate(chat, tokenizer, [HELLO], max_new_tokens=8, progress=False)[0]
    assert answer.text.startswith("Hello! How can I")
    assert answer.text == tokenizer.decode(answer.ids)


def test_progress_is_a_bar_and_no_streamer(llama, words, capsys):
    """TextStreamer supports one row only; a batch reports answers and tokens per second."""
    generate(llama, words, ["w5", "w6"], max_new_tokens=3)
    assert "2/2" in capsys.readouterr().err
