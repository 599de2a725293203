"""llama.cpp as a way of benchmarks/throughput.py: the file that is written for it, and that it answers like the loop.

Needs the package xllamacpp (llama.cpp with its server in a wheel, MIT).
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from benchmarks import peers
from benchmarks import prompts as sets
from benchmarks.throughput import Measured, Work, loop

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xllamacpp", reason="the engine is not installed (package xllamacpp)")


@pytest.fixture(scope="module")
def work():
    return Work(4, "float32", "ours")


def test_the_file_has_the_checkpoints_weights_and_no_end_of_an_answer(work, tmp_path):
    import gguf

    path = peers.write_gguf(tmp_path / "chat.gguf", "float32")
    reader = gguf.GGUFReader(path)
    tensors = {one.name: one for one in reader.tensors}
    assert {one.tensor_type.name for one in tensors.values()} == {"F32"}
    weights = work.model.state_dict()
    for theirs, name in (("token_embd", "embed_tokens"), ("blk.3.ffn_down", "layers.3.mlp.down_proj"), ("output_norm", "norm")):
        assert np.array_equal(tensors[f"{theirs}.weight"].data, weights[f"model.{name}.weight"].numpy())
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 49152
    assert not {"<|im_end|>", "<|endoftext|>"} & set(reader.fields["tokenizer.ggml.tokens"].contents())


def test_llama_cpp_answers_like_the_loop_and_goes(work, tmp_path):
    everything = [0, 1, 2, 3]
    peer = peers.llama(work, sys.executable, "float32", 1, tmp_path)
    try:
        with Measured(peer.process) as one:
            found = peer(work, everything)
        assert peer.process.status() == "stopped" and 0 < peer.seconds <= one.wall and one.peak > 500 * 10**6
        assert peer(work, [2]) == {2: found[2]}
    finally:
        peer.close()
    assert peer.engine.returncode is not None
    assert [len(found[at]) for at in everything] == work.lengths
    truth = loop(work, everything)
    # Two ways to add up float32 differ where two tokens are as good as equal; see the table for how often.
    assert sum(found[at] == truth[at] for at in everything) >= 3


def test_a_request_that_the_engine_refuses_is_told(work, tmp_path):
    peer = peers.llama(work, sys.executable, "float32", 1, tmp_path)
    try:
        with pytest.raises(peers.PeerError, match=r"llama.cpp ended with exit code 1: .*HTTP Error 400"):
            peer(SimpleNamespace(ids=[[1] * 9000], lengths=[1]), [0])
    finally:
        peer.close()


def test_both_sets_have_eighty_prompts():
    assert len(sets.ours()) == len(sets.mt_bench()) == 80
