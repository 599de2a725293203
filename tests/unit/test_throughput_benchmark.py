"""benchmarks/throughput.py without a model: who takes part, what a failing way does to the others, what the table says."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import peers, throughput

WORK = SimpleNamespace(ids=[[1]] * 8, lengths=[2] * 8)


def answers(work, chosen):
    return {at: [at, at] for at in chosen}


def others(work, chosen):
    return {at: [at, at % 2] for at in chosen}


def broken(work, chosen):
    raise MemoryError("no room for 8 prompts\nand a second line")


def late():
    """Return a way that works once."""
    left = iter([answers])
    return lambda work, chosen: next(left, broken)(work, chosen)


def test_an_engine_that_is_not_installed_is_left_out_with_the_cure(monkeypatch, tmp_path):
    for names, value in ((peers.TITLES, "Nobody"), (peers.OPTION, "--nobody"), (peers.INSTALL, "pip install nobody")):
        monkeypatch.setitem(names, "no_such_engine", value)
    cure = "Name an interpreter that has it: --nobody PYTHON (pip install nobody)."
    assert (peers.missing("no_such_engine", sys.executable)
            == f"Nobody is left out: this Python has no package no_such_engine. {cure}")
    absent = str(tmp_path / "python")
    assert peers.missing("no_such_engine", absent) == f"Nobody is left out: {absent} cannot be run (FileNotFoundError). {cure}"


def test_an_engine_that_is_installed_is_not_left_out(monkeypatch):
    for names in (peers.TITLES, peers.OPTION, peers.INSTALL):
        monkeypatch.setitem(names, "psutil", "-")
    assert peers.missing("psutil", sys.executable) == ""


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed in this environment")
def test_an_engine_that_does_not_start_is_named_with_its_last_words():
    with pytest.raises(peers.PeerError, match="vLLM ended with exit code 1: ModuleNotFoundError: No module named 'vllm'"):
        peers.Peer("vllm", sys.executable, {"model": "", "dtype": "float32"})


def test_last_words_name_the_fault_rather_than_the_end_of_the_log():
    assert peers.last_words("Loading\nValueError: too long\n\nleaked shared memory\n") == "ValueError: too long"
    assert peers.last_words("Loading\nKilled\n") == "Killed"
    assert peers.last_words("") == "it left no message"


def test_llama_cpp_takes_part_only_where_it_computes_the_same(monkeypatch):
    monkeypatch.setenv("LAB_PROFILE", "bundled")
    assert peers.left_out_llama("float32", "cpu") == ""
    assert "this run is on cuda" in peers.left_out_llama("float32", "cuda")
    assert "it has no float64" in peers.left_out_llama("float64", "cpu")
    monkeypatch.setenv("LAB_PROFILE", "hub")
    assert "LAB_PROFILE=bundled" in peers.left_out_llama("float32", "cpu")


def test_a_sample_is_evenly_spread_and_never_longer_than_the_whole():
    assert throughput.evenly(list(range(80)), 12) == [0, 6, 13, 20, 26, 33, 40, 46, 53, 60, 66, 73]
    assert throughput.evenly([4, 5, 6], 12) == [4, 5, 6]


def test_a_way_that_fails_leaves_the_others_and_its_earlier_rounds():
    said = []
    ways = {"loop": answers, "others": others, "broken": broken, "late": late()}
    results = throughput.measure(WORK, ways, 3, {"loop": 4}, said.append)
    assert [one["tokens"] for one in results.measured["loop"]] == [16, 8, 8]
    assert [one["equal"] for one in results.measured["loop"]] == [8, 4, 4]
    assert [len(results.measured.get(name, ())) for name in ways] == [3, 3, 0, 1]
    assert results.failed == dict.fromkeys(("broken", "late"), "MemoryError: no room for 8 prompts")
    assert results.equal == {"loop": "8 of 8", "others": "2 of 8", "late": "8 of 8"}
    assert len(said) == 3 + 3 + 1 + 2


def test_without_the_loop_there_is_nothing_to_compare_with():
    with pytest.raises(MemoryError):
        throughput.measure(WORK, {"loop": broken, "others": others}, 1, {}, print)


def test_the_table_has_its_title_the_ratios_and_the_failures():
    results = throughput.Results()
    results.measured = {
        "loop": [{"tokens": 100, "seconds": 10.0, "cpu_seconds": 20.0, "peak_mb": 900},
                 {"tokens": 50, "seconds": 10.0, "cpu_seconds": 10.0, "peak_mb": 800}],
        "fast": [{"tokens": 100, "seconds": 2.0, "cpu_seconds": 5.0, "peak_mb": 1200}]}
    results.equal, results.failed = {"loop": "8 of 8", "fast": "7 of 8"}, {"slow": "PeerError: gone"}
    title, head, loop, fast, slow = throughput.table(results, "data/prompts.jsonl: 8 prompts").splitlines()
    assert title == "data/prompts.jsonl: 8 prompts" and head.split()[-4:] == ["equal", "to", "the", "loop"]
    assert loop.split() == ["loop", "7.5", "1.00", "1.00", "900", "8", "of", "8"]
    assert fast.split() == ["fast", "50.0", "5.00", "4.00", "1,200", "7", "of", "8"]
    assert slow.split() == ["slow", "failed:", "PeerError:", "gone"]


def test_options():
    assert (throughput.options([]).rounds, throughput.options([]).set) == (5, "mtbench")
    quick = throughput.options(["--quick", "--set", "ours", "--vllm", "v/bin/python", "--llama", "python3"])
    assert (quick.rounds, quick.prompts, quick.set) == (1, 16, "ours")
    assert quick.vllm == str(Path.cwd() / "v/bin/python") and quick.llama == "python3"
