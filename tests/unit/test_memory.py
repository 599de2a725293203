"""Who holds a tensor in a notebook (in a real IPython kernel), public configs by name, the fit planner and its picture."""

import ast
import platform
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from labutils import arithmetic, memory, views
from labutils.arithmetic.errors import ConfigError
from labutils.arithmetic.known import _models
from labutils.widgets.fit import SCHEMES, fit_bars

NEW = "net = torch.nn.Linear(4, 4); bytes_ = weakref.ref(net.weight.untyped_storage())"
END = "del net; gc.collect(); print([memory.holders(bytes_())])"
AFTER = "memory.forget(); print([bytes_() is None])"
SCENES = [
    ("import gc, torch, weakref\nfrom labutils import memory", None),
    (NEW + "\nnet.eval()", None),
    (END, ["the displayed result of cell 2: Out[2], _2", "the last displayed results: _, __, ___"]),
    (AFTER, True),
    (NEW + "\nnet('text')", None),
    (END, ["the last traceback: self in _wrapped_call_impl()"]),
    (AFTER, True),
    (NEW + "\nkept = net(torch.ones(1, 4))", None),
    (END, ["the name kept (through its graph)"]),
    (NEW + "\nkept = [net.state_dict()]", None),
    (END, ["the name kept (a list)"]),
    (NEW + "\nkept = net.forward", None),
    (END, ["the name kept (a method)"]),
    (NEW + "\nkept = torch.nn.Sequential(net)", None),
    (END, ["the name kept (its weights)"]),
    (NEW + "\ntry: net(None)\nexcept TypeError as error: kept = error", None),
    (END, ["the name kept (through its traceback)"]),
    ("kept = None; memory.forget(); 7", None),
    ("print([_])", 7),
    (NEW + "\nkept = net", None),
    (END, ["the name kept (its weights)"]),
    ("memory.forget(); print([kept is not None])", True),
]


def test_holders_are_named_and_forget_lets_go_in_a_real_kernel():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code, _ in SCENES])
    NotebookClient(notebook, allow_errors=True, kernel_name="python3", timeout=120).execute()
    for (code, wanted), cell in zip(SCENES, notebook.cells, strict=True):
        if wanted is not None:
            said = "".join(output.get("text", output.get("evalue", "")) for output in cell.outputs)
            assert ast.literal_eval(said)[0] == wanted, f"{code}\n{said}"


def test_outside_a_notebook_names_of_the_caller_are_looked_at_and_nothing_fails():
    target = [object()]
    globals()["planted"] = {"inside": target}
    try:
        assert memory.holders(target) == ["the name planted (a dict)"]
    finally:
        del globals()["planted"]
    assert memory.holders(None) == []
    memory.forget()
    assert memory.resident() > 10**7


def test_cap_without_an_accelerator_caps_main_memory(monkeypatch):
    from labutils import environment

    monkeypatch.setattr(environment, "device", lambda: "cpu")
    assert memory.cap("200MB") == {"cpu": "200MB"}
    monkeypatch.setattr(environment, "device", lambda: "cuda")
    monkeypatch.setattr(environment, "memory", lambda: (10**10, 8 * 10**9))
    assert memory.cap("200MB") == {0: "200MB", "cpu": "8000MB"}


@pytest.mark.parametrize("name", arithmetic.known_names())
def test_a_public_config_gives_the_public_number_of_parameters(name):
    assert arithmetic.parameters(arithmetic.known(name)).total == _models()[name]["parameters"]


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match="no model 'Llama-9'.*Llama-3.1-8B"):
        arithmetic.known("Llama-9")


def test_a_config_handed_out_is_the_callers_own():
    arithmetic.known("Llama-2-7B")["vocab_size"] = 1
    assert arithmetic.known("Llama-2-7B")["vocab_size"] == 32000


def test_the_fit_picture_says_what_the_plan_says():
    config = arithmetic.known("Llama-2-7B")
    said = fit_bars("Llama-2-7B", config, "24 GB", 16, 4096).description
    for scheme, label in SCHEMES.items():
        plan = arithmetic.plan(config, "24 GB", quantization=scheme, batch=16, context=4096)
        assert not plan.fits
        assert f"{label}: weights {plan.weights.total / 1e9:.2f} + cache 34.36 + logits" in said
        assert f"at most batch {plan.largest_batch:,}, or context {plan.longest_context:,}" in said
    assert "made for" not in said
    assert fit_bars("x", config, "80 GB", 1, 8192).description.endswith("made for 4,096 tokens at most")
    assert "does not fit;" in fit_bars("x", arithmetic.known("Llama-3.1-70B"), "24 GB", 1, 128).description


def test_the_planner_draws_and_redraws():
    from labutils import widgets

    planner = widgets.fit_planner(own={**arithmetic.known("Qwen2.5-0.5B")})
    before = planner.view.description
    planner.controls["batch"].value = 512
    assert "batch 512" in planner.view.description != before
    planner.controls["model"].value = "own"
    assert planner.view.description.startswith("own: batch 512")


def test_curves_say_their_ends_and_refuse_ragged_lines():
    picture = views.curves({"a": ([1, 2, 4], [1, 10, 100])}, "Title?", "x", "y", band=(2, 3, "rule"), log="xy", points=2)
    assert picture.description == "Title. x → y. a: 1 → 1.00, 4 → 100.00; grey stripe 2 to 3: rule"
    assert picture.png == views.curves({"a": ([1, 2, 4], [1.0001, 10, 100])}, "Title?", "x", "y", band=(2, 3, "rule"),
                                       log="xy", points=2).png
    with pytest.raises(ValueError, match="'a' has 2 x values and 1 y values"):
        views.curves({"a": ([1, 2], [1])}, "Title", "x", "y")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to return memory")
def test_lean_and_forget_give_freed_memory_back():
    """Six hundred blocks of 2 MiB, every second one freed: by default glibc keeps such holes once its limit has risen."""
    script = """
import numpy
from labutils import memory
numpy.ones(30 * 2**20, numpy.uint8)             # allocated and freed: glibc raises its limit to 30 MiB
memory.lean()
blocks = [numpy.ones(2 * 2**20, numpy.uint8) for _ in range(300)]
full = memory.resident()
del blocks[::2]
print(full - memory.resident())
"""
    freed = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert freed > 250 * 2**20
