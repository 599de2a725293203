"""The quantization explorer and the curves: what is drawn is what was computed."""

import pytest

from labutils.checkpoints import checkpoint
from labutils.widgets import quantization as widget_module  # noqa: F401
from labutils.widgets.quantization import absmax, before_and_after, size, squeezed

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("group, shape", [("32", (8, 1)), ("row", (4, 1)), ("tensor", (1, 1)), ("192", (4, 1))])
def test_absmax_restores_within_half_a_step(group, shape):
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    codes, scales = absmax(weight, 4, group)
    assert scales.shape == shape and codes.abs().max() == 7
    assert ((codes * scales).reshape(4, 64) - weight).abs().max() <= scales.max() / 2 + 1e-6


def test_squeezed_layers_compute_with_few_bits_and_come_back():
    layer = torch.nn.Linear(64, 8)
    before = layer.weight.detach().clone()
    x = torch.randn(3, 64)
    codes, scales = absmax(before, 3, "32")
    with torch.inference_mode(), squeezed([layer], 3, "32") as count:
        inside = layer(x)
    assert count == 16
    assert torch.allclose(inside, torch.nn.functional.linear(x, (codes * scales).reshape(8, 64), layer.bias))
    assert torch.equal(layer.weight, before)
    with torch.inference_mode():
        assert torch.allclose(layer(x), torch.nn.functional.linear(x, before, layer.bias))


def test_the_size_counts_scales_and_what_is_left():
    assert size(weights=64, scales=1, rest=10, bits=4) == 32 + 2 + 20


def test_the_histogram_says_its_title():
    weight = torch.linspace(-1, 1, 64).reshape(1, 64)
    codes, scales = absmax(weight, 2, "row")
    picture = before_and_after(weight.flatten(), (codes * scales).flatten(), "2 bits", "error 1 %")
    assert picture.description == "2 bits. error 1 %" and picture.png[:4] == b"\x89PNG"


def test_the_explorer_writes_with_the_squeezed_model():
    from labutils import widgets

    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)
    explorer = widgets.quantization(tokenizer, model, "The capital of France is", bits=8, group="64", new=2)
    assert "8 bits, one scale per 64: 8.25 bits per weight" in explorer.view.description
    assert "Paris" in explorer.view.description
    explorer.controls["bits"].value = 2
    assert "2 bits" in explorer.view.description and "Paris" not in explorer.view.description
