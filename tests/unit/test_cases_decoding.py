"""User reports about generation, run against the real library: the parts that lie beside what test_decoding.py holds.

Each docstring names the public report. The order of answers and the retreat from a full memory are tested with the batched
generation that has to get them right.
"""

import gc
import logging
import weakref

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers.generation import logits_process as library  # noqa: E402

END = 2     # <|im_end|>: the chat checkpoint ends a turn with it, and pads with it


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=24, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)
    return transformers.LlamaForCausalLM(config).eval()


def padded(tokenizer, texts):
    return tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")


def test_a_temperature_without_sampling_is_said_to_be_ignored_and_is(tiny, caplog):
    """huggingface/transformers#36896, #31839: temperature=0.2 with do_sample=False; greedy needs no temperature."""
    ids = torch.arange(5)[None]
    how = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 6}
    plain = tiny.generate(ids, **how)
    logger, before = logging.getLogger("transformers"), transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(caplog.handler)
    try:
        again = tiny.generate(ids, temperature=0.2, **how)
    finally:
        logger.removeHandler(caplog.handler)
        transformers.logging.set_verbosity(before)
    assert "generation flags are not valid and may be ignored: ['temperature']" in caplog.text
    assert torch.equal(plain, again)


def test_the_stop_of_other_interfaces_is_refused(tiny):
    """xorbitsai/inference#211, the other name: `stop` is OpenAI's, `stop_strings` generate's."""
    with pytest.raises(ValueError, match="not used by the model: .'stop'"):
        tiny.generate(torch.arange(5)[None], stop=["x"], max_new_tokens=3)


def test_a_penalised_row_does_not_feel_its_padding_though_pad_is_the_end(chat, tokenizer):
    """huggingface/text-generation-inference#1765: padding must not matter. Fixed in generate; the class alone does not know."""
    done = "Question: What is the capital of Japan?\nAnswer: The capital of Japan is Tokyo."
    alone, pair = padded(tokenizer, [done]), padded(tokenizer, [done, "Once upon a time there was a girl. " * 4])
    assert tokenizer.pad_token_id == END and END not in alone["input_ids"] and END in pair["input_ids"][0]

    def first_scores(inputs, **how):
        return chat.generate(**inputs, do_sample=False, max_new_tokens=1, output_scores=True, return_dict_in_generate=True,
                             **how).scores[0][0]

    by_itself, beside = (first_scores(inputs, repetition_penalty=1.3) for inputs in (alone, pair))
    assert by_itself.argmax() == beside.argmax() == END
    assert (by_itself - beside).abs().max() < 1e-3
    by_hand = first_scores(pair, logits_processor=[library.RepetitionPenaltyLogitsProcessor(1.3)])
    assert by_hand.argmax() != END
    assert by_hand[END].item() == pytest.approx(beside[END].item() / 1.3, abs=1e-3)


def test_a_forgotten_mask_brings_the_padding_back(chat, tokenizer):
    """The same report, the way around the cure: `generate` reads the padding from the mask and from nothing else."""
    pair = padded(tokenizer, ["The capital of France is", "Once upon a time there was a girl. " * 2])
    how = {"do_sample": False, "max_new_tokens": 1, "output_scores": True, "output_logits": True,
           "return_dict_in_generate": True, "repetition_penalty": 1.3}
    kept = chat.generate(**pair, **how)
    assert kept.scores[0][0, END] == kept.logits[0][0, END]
    lost = chat.generate(**{**pair, "attention_mask": torch.ones_like(pair["input_ids"])}, **how)
    assert lost.scores[0][0, END] != lost.logits[0][0, END]


def test_an_empty_prompt_in_a_batch_is_answered_all_the_same(chat, tokenizer):
    """huggingface/transformers#3678, #13774: alone an error, in a batch a row without one real token, and no word of it."""
    pair = padded(tokenizer, ["", "The capital of France is"])
    assert pair["attention_mask"].sum(1).tolist() == [0, 5]
    new = chat.generate(**pair, do_sample=False, max_new_tokens=4)[:, 5:]
    assert new.shape == (2, 4)
    alone = chat.generate(**padded(tokenizer, ["The capital of France is"]), do_sample=False, max_new_tokens=4)[:, 5:]
    assert torch.equal(new[1:], alone)


def test_a_seed_holds_for_a_batch_of_one_shape(tiny):
    """vllm-project/vllm#6197, ollama/ollama#1749: the same seed, another batch, another text."""
    ids = torch.arange(10).reshape(2, 5)

    def draw(rows):
        torch.manual_seed(0)
        return tiny.generate(rows, attention_mask=torch.ones_like(rows), do_sample=True, temperature=3.0, max_new_tokens=12)

    assert torch.equal(draw(ids), draw(ids))
    assert torch.equal(draw(ids[:1]), draw(ids[:1]))
    assert not torch.equal(draw(ids)[:1], draw(ids[:1]))


def test_beams_and_samples_multiply_the_bytes_of_the_cache(tiny):
    """huggingface/transformers#22639: one layer's keys and values of 14 positions, for one row and for four."""
    ids = torch.arange(10)[None]
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5, "return_dict_in_generate": True}

    def held(**more):
        layer = tiny.generate(ids, **how, **more).past_key_values.layers[0]
        return layer.keys.nbytes + layer.values.nbytes

    assert held(do_sample=False) == 2 * 2 * 14 * 16 * 4 == 3584
    assert held(do_sample=False, num_beams=4) == held(do_sample=True, num_return_sequences=4) == 4 * 3584 == 14336


def test_kept_outputs_keep_the_whole_forward_pass_unless_told_not_to(tiny):
    """allenai/longformer#36: memory that grows with each step of a loop. inference_mode, or detach, lets go of it."""
    def kept(forward):
        alive = []
        hook = tiny.model.layers[0].mlp.down_proj.register_forward_hook(
            lambda layer, given, result: alive.append(weakref.ref(given[0])))
        try:
            rows = [forward(torch.arange(5)[None]) for _ in range(3)]
        finally:
            hook.remove()
        gc.collect()
        assert len(rows) == len(alive) == 3
        return sum(each() is not None for each in alive)

    def in_inference_mode(ids):
        with torch.inference_mode():
            return tiny(ids).logits

    assert kept(lambda ids: tiny(ids).logits) == 3
    assert kept(lambda ids: tiny(ids).logits.detach()) == 0
    assert kept(in_inference_mode) == 0
