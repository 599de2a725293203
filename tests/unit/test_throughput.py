"""labutils.throughput: the two limits by hand, a real measurement of a small model, recordings, the explorer's pictures."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from labutils import data, environment, throughput, views, widgets
from labutils.throughput import Curve, Point
from labutils.widgets.throughput import tradeoff, within

CURVE = Curve("by hand", (Point(1, 0.5, 0.1), Point(2, 1.0, 0.3), Point(4, 1.5, 0.2)), parameters=1000, weight_bytes=4000,
              row_bytes=100, bandwidth=50_000.0, flops=100_000.0, prompt=16)


def test_the_limits_are_bytes_over_bandwidth_and_operations_over_rate():
    assert CURVE.memory_seconds(4) == (4000 + 4 * 100) / 50_000
    assert CURVE.compute_seconds(4) == 2 * 1000 * 4 / 100_000
    # Where reading the weights takes as long as the arithmetic: 4000 / 50000 s against 0.02 s a row.
    assert CURVE.free_rows == pytest.approx(4.0)


def test_latency_is_the_prefill_and_the_steps_after_the_first_token():
    point = CURVE.point(2)
    assert point.latency(1) == 1.0 and point.latency(11) == pytest.approx(4.0)
    assert point.throughput(11) == pytest.approx(2 * 11 / 4.0)
    with pytest.raises(ValueError, match=r"Batch 3 was not measured; \[1, 2, 4\]"):
        CURVE.point(3)


def test_rows_are_cut_from_the_prompts_in_order():
    assert throughput.rows_of([[1, 2, 3], [4], [5, 6, 7, 8]], 3) == [[1, 2, 3], [4, 5, 6]]
    assert throughput.rows_of([[1, 2]], 3) == []


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        eos_token_id=3, num_attention_heads=4, num_key_value_heads=2, pad_token_id=3)).eval()


def test_measure_times_every_step_of_a_real_model(small):
    seconds = throughput.steps(small, [[5, 6, 7]] * 2, new=5)
    assert len(seconds) == 5 and all(each > 0 for each in seconds)
    curve = throughput.measure(small, [[5, 6, 7, 8]] * 4, (1, 3), prompt=4, new=4, repeat=2)
    assert [point.batch for point in curve.points] == [1, 3]
    assert curve.parameters == small.num_parameters() and curve.weight_bytes == 4 * small.num_parameters()
    assert curve.row_bytes == 2 * 2 * 2 * 8 * 4 * 4      # layers, keys and values, heads, head size, positions, float32
    assert curve.bandwidth > 0 and curve.flops > 0
    with pytest.raises(ValueError, match="a batch of 9 needs more"):
        throughput.measure(small, [[5, 6, 7, 8]] * 4, (9,), prompt=4)


def test_the_recording_is_whole_and_another_kind_is_refused():
    curve = throughput.recorded("cpu")
    kept = json.loads((data.path("traces") / "batch_curve_cpu.json").read_text(encoding="utf-8"))
    assert throughput.as_json(curve)["weight_bytes"] == kept["curve"]["weight_bytes"] == 4 * curve.parameters
    assert {"measured", "machine", "versions", "prompts_sha256", "dtype", "settings"} <= set(kept)
    assert kept["measured"] in curve.name
    import hashlib

    assert kept["prompts_sha256"] == hashlib.sha256(data.path("prompts.jsonl").read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="not 'tpu'"):
        throughput.recorded("tpu")


def test_a_machine_without_a_recording_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "path", lambda name: tmp_path)
    assert throughput.recorded("gpu") is None


def test_the_best_batch_within_a_budget():
    assert within(CURVE, 11, 10.0).batch == 4
    assert within(CURVE, 11, 2.0).batch == 1
    assert within(CURVE, 11, 0.1) is None


def test_pictures_say_what_they_show():
    said = repr(views.roofline(CURVE))
    assert said.startswith("Up to about 4 rows, reading the weights is the limit. by hand.") and "batch 2 6.67" in said
    assert "Best within 3.5 s: batch 4, 12.6 tokens per second" in repr(tradeoff(CURVE, 2, 11, 3.5))
    assert "No batch answers within the budget" in repr(tradeoff(CURVE, 2, 11, 0.1))
    said = repr(views.padding({"as they come": [[4, 2], [3]]}, "Padding"))
    assert said == "Padding. as they come: 11 positions for 9 tokens, 18% padding"


def test_the_explorer_moves_and_takes_a_curve_without_the_chosen_batch():
    other = Curve("another", (Point(1, 0.2, 0.1),), 1000, 4000, 100, 5e4, 1e5, 16)
    explorer = widgets.throughput({"ours": CURVE, "other": other}, batch=2, new=16, budget=4.0)
    assert "Batch 2:" in repr(explorer)
    explorer.controls["batch"].value = 4
    assert "Batch 4:" in repr(explorer.view)
    explorer.controls["curve"].value = "other"
    assert "another. Batch 1:" in repr(explorer.view)


def test_the_dtype_follows_the_device(monkeypatch):
    assert environment.dtype() == torch.float32
    for device, capability, wanted in (("cuda", (7, 5), torch.float16), ("cuda", (8, 0), torch.bfloat16),
                                       ("cuda", (9, 0), torch.bfloat16), ("mps", None, torch.float16)):
        monkeypatch.setattr(environment, "device", lambda device=device: device)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        assert environment.dtype() == wanted
