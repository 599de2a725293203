"""Checkers of lesson 10, Quantization."""

import math
import struct
from collections.abc import Callable

from labutils.check.core import Wrong, call, exercise, prediction


def _number(guess, what: str) -> float:
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise Wrong(f"{what} was asked for; this is {guess!r}.")
    return float(guess)


@prediction("10.1")
def zeros(guess: float, measured: float) -> str:
    """Compare a guess with the share of weights that became 0; within 10 points is right."""
    guess = _number(guess, "A share")
    if not 0 <= guess <= 1:
        raise Wrong(f"A share lies between 0 and 1; this is {guess:g}.")
    if abs(guess - measured) <= 0.1:
        return f"You said {guess:.0%}, measured {measured:.0%}. The outlier sets the step; most weights are under half of it."
    if guess < 0.15:
        reason = "You shared the codes out evenly. But the weights crowd around zero, and the largest one sets the step."
    elif guess < measured:
        reason = "The step is a seventh of the largest weight, and that is sixteen standard deviations out."
    else:
        reason = "Not quite all: a weight survives from half a step on."
    raise Wrong(f"You said {guess:.0%}, measured {measured:.0%}. {reason}")


@prediction("10.2")
def nf4_size(guess: float, held: int) -> str:
    """Compare a guess in MB with the bytes held as NF4; within 3 MB is right."""
    guess, right = _number(guess, "A number of MB"), held / 1e6
    if guess > 10_000:
        raise Wrong(f"{guess:g} MB is a lot; give millions of bytes.")
    if abs(guess - right) <= 3:
        return f"You said {guess:g}, held are {right:.1f} MB: codes, scales, and a fifth of the model that stayed in 16 bit."
    if abs(guess - 67.3) <= 3:
        reason = "That is a quarter of bfloat16. Embeddings and norms stay as they are, and the codes carry scales."
    elif abs(guess - 134.5) <= 3:
        reason = "That is half: int8 would do that, if it quantized everything."
    elif abs(guess - 109.8) < 3:
        reason = "You left out the scales: 4 bytes for every 64 weights."
    elif abs(guess - 75.7) <= 4:
        reason = "4.5 bits for every weight: scales are in, but the embeddings, a fifth of the model, stay in 16 bit."
    else:
        reason = "Count three things: codes (half a byte), scales (4 bytes for 64 weights), and what stays in 16 bit."
    raise Wrong(f"You said {guess:g}, held are {right:.1f} MB. {reason}")


@exercise("10.1")
def quantize_absmax(function: Callable) -> str:
    """Check (weight, bits, group) -> (codes int8 [rows, columns], scales [rows, columns / group])."""
    import torch

    random = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 64, generator=random)
    weight[2, 5] = 20.0
    weight[4, 16:32] = 0.0
    for bits, group in ((8, 16), (4, 16), (4, 64), (3, 32)):
        given = weight.clone()
        got = call(function, given, bits, group, shown=f"weight [6, 64], {bits}, {group}")
        if not torch.equal(given, weight):
            raise Wrong("Your function changed the weight it was given. Build new tensors.")
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(f"Return two tensors, codes and scales; this is {type(got).__name__}.")
        codes, scales = got
        if not isinstance(codes, torch.Tensor) or not isinstance(scales, torch.Tensor):
            raise Wrong("Codes and scales should be tensors.")
        top = 2 ** (bits - 1) - 1
        if codes.is_floating_point() and (codes != codes.round()).any():
            raise Wrong("Your codes are not whole numbers. Round after the division.")
        if scales.numel() == 1:
            raise Wrong("There is one scale for the whole tensor. Each row and each group of columns has its own.")
        if scales.shape != (6, 64 // group):
            raise Wrong(f"scales should be [6, {64 // group}] for groups of {group}; yours are {list(scales.shape)}.")
        if codes.shape != weight.shape:
            raise Wrong(f"codes should have the shape of the weight, [6, 64]; yours are {list(codes.shape)}.")
        if not scales.isfinite().all() or (scales[4] == 0).any():
            raise Wrong("A group of zeros has no usable scale in your answer (0 or nan). Any other number will do there.")
        if codes.dtype != torch.int8:
            raise Wrong(f"codes should be int8; yours are {str(codes.dtype).removeprefix('torch.')}.")
        low, high = int(codes.min()), int(codes.max())
        if high > top or low < -top:
            raise Wrong(f"With {bits} bits the codes should stay within -{top} and {top}; yours run from {low} to {high}.")
        if high < top and low > -top:
            raise Wrong(f"With {bits} bits the largest weight should get code {top} or -{top}; you stop at {max(high, -low)}.")
        restored = (codes.reshape(6, -1, group) * scales[..., None]).reshape(6, 64)
        parts = weight.reshape(6, -1, group)
        step = parts.abs().amax(-1, keepdim=True) / top
        off = ((restored - weight).abs().reshape(parts.shape) - step / 2).max()
        if off > 1e-4:
            toward_zero = torch.equal(codes, (parts / scales[..., None]).trunc().reshape(6, 64).to(torch.int8))
            if toward_zero:
                raise Wrong("Your codes are cut off towards zero. Round to the nearest: .round() before .to(torch.int8).")
            raise Wrong(f"Restored as codes * scales, some weight is off by more than half a step (groups of {group}, {bits} "
                        "bits). Does each scale meet the columns that it came from?")
    return "Right: 8, 4 and 3 bits, groups and whole rows, an outlier that spoils only its own group, and a group of zeros."


@exercise("10.2")
def pack_int4(function: Callable) -> str:
    """Check codes uint8 [n] of 0 to 15 -> uint8 [n / 2], first of a pair in the upper half."""
    import torch

    for values in ([1, 2, 3, 4, 15, 0, 9, 14], list(range(16)) + list(range(15, -1, -1))):
        codes = torch.tensor(values, dtype=torch.uint8)
        given = codes.clone()
        got = call(function, given, shown=f"{values[:8]}")
        if not isinstance(got, torch.Tensor):
            raise Wrong(f"A tensor was asked for; this is a {type(got).__name__}.")
        if not torch.equal(given, codes):
            raise Wrong("Your function changed the codes it was given.")
        if got.shape != (len(values) // 2,):
            raise Wrong(f"{len(values)} codes make {len(values) // 2} bytes; yours has the shape {list(got.shape)}.")
        if got.dtype != torch.uint8:
            raise Wrong(f"The result should be uint8, a byte for two codes; yours is {str(got.dtype).removeprefix('torch.')}.")
        wide = codes.int()
        right = wide[0::2] * 16 + wide[1::2]
        if torch.equal(got.int(), right):
            continue
        middle = len(values) // 2
        if torch.equal(got.int(), wide[1::2] * 16 + wide[0::2]):
            raise Wrong("The halves are swapped: the first of a pair goes into the upper half.")
        first, second = wide[:middle], wide[middle:]
        if torch.equal(got.int(), first * 16 + second) or torch.equal(got.int(), second * 16 + first):
            raise Wrong("You paired the first half of the tensor with the second. Neighbours belong together.")
        if torch.equal(got.int(), wide[0::2] * 10 + wide[1::2]) or torch.equal(got.int(), wide[0::2] * 8 + wide[1::2]):
            raise Wrong("The upper half counts sixteens: code * 16, or code << 4.")
        if torch.equal(got.int(), wide[0::2] + wide[1::2]):
            raise Wrong("You added the pair, and two codes cannot be told apart again. Shift the first one up by 4 bits.")
        raise Wrong(f"From {values[:4]} should come {right[:2].tolist()}; yours are {got[:2].tolist()}.")
    return "Right: two codes a byte, none lost, in the order of bitsandbytes."


@exercise("10.3")
def bits_per_weight(function: Callable) -> str:
    """Check [(weights, weights in a block, bytes of a block), ...] -> bits per weight of all together."""
    cases = (
        ([(3200, 32, 18)], "one Q4_0 tensor", 4.5),
        ([(3200, 32, 20), (320, 32, 34), (64, 1, 4)], "Q4_1, a little Q8_0, a little F32", None),
        ([(256 * 90, 256, 144), (256 * 10, 256, 210)], "nine tenths Q4_K, one tenth Q6_K", None),
    )
    for tensors, shown, known in cases:
        size = sum(weights // block * amount for weights, block, amount in tensors)
        total = sum(weights for weights, *_ in tensors)
        right = known or size * 8 / total
        got = call(function, list(tensors), shown=f"{shown}")
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(f"A number of bits was asked for; this is {got!r}.")
        if math.isclose(got, right, rel_tol=1e-9):
            continue
        mean = sum(amount * 8 / block for _, block, amount in tensors) / len(tensors)
        if math.isclose(got, right / 8, rel_tol=1e-6):
            raise Wrong(f"For {shown} that is {got:g} bytes a weight. A byte has 8 bits.")
        if math.isclose(got, mean, rel_tol=1e-6):
            raise Wrong(f"For {shown} you took the mean of the types, {got:g}. Weigh each by its weights: {right:g}.")
        if math.isclose(got, 1 / right, rel_tol=1e-6) or math.isclose(got, total / size, rel_tol=1e-6):
            raise Wrong("That is weights by size. Bits per weight is the other way round.")
        if math.isclose(got, size * 8, rel_tol=1e-6):
            raise Wrong(f"{got:g} bits in all. Divide by the weights.")
        if known and got == 4:
            raise Wrong("4 bits are the codes alone. The block also holds a scale: 18 bytes for 32 weights.")
        raise Wrong(f"For {shown} it should be {right:g}; yours is {got:g}.")
    return "Right: bytes of all blocks over all weights, so that a big tensor counts more than a small one."


@exercise("10.4")
def dequantize_q4_1(function: Callable) -> str:
    """Check a block of 20 bytes -> 32 weights, against gguf.dequantize."""
    import gguf
    import numpy

    random = numpy.random.default_rng(0)
    for scale, minimum in ((0.25, -2.0), (0.0098, -0.071)):
        pairs = random.integers(0, 256, 16, dtype=numpy.uint8).tobytes()
        block = struct.pack("<ee", scale, minimum) + pairs
        right = gguf.dequantize(numpy.frombuffer(block, numpy.uint8), gguf.GGMLQuantizationType.Q4_1).tolist()
        got = call(function, block, shown="a block of 20 bytes")
        try:
            got = [float(value) for value in got]
        except (TypeError, ValueError):
            raise Wrong(f"A list of 32 numbers was asked for; this is a {type(got).__name__}.") from None
        if len(got) != 32:
            raise Wrong(f"A block holds 32 weights; yours are {len(got)}.")

        def like(other, got=got):
            return all(math.isclose(one, two, rel_tol=1e-3, abs_tol=1e-4) for one, two in zip(got, other, strict=True))

        if like(right):
            continue
        step, low = (struct.unpack("<e", struct.pack("<e", number))[0] for number in (scale, minimum))
        codes = [round((value - low) / step) for value in right]
        neighbours = [code for pair in zip(codes[:16], codes[16:], strict=True) for code in pair]
        other = [("the weights of a byte side by side", [code * step + low for code in neighbours],
                  "Lower halves are weights 0 to 15, upper halves 16 to 31; yours stand side by side."),
                 ("upper first", [code * step + low for code in codes[16:] + codes[:16]],
                  "The halves are swapped: the lower four bits come first, as weights 0 to 15."),
                 ("no minimum", [code * step for code in codes], "The minimum is missing: code * scale + minimum."),
                 ("subtracted", [code * step - low for code in codes], "The minimum is added, not subtracted."),
                 ("swapped floats", [code * low + step for code in codes],
                  "Scale and minimum are swapped: the scale stands first."),
                 ("Q4_0", [(code - 8) * step for code in codes],
                  "You moved the codes by 8, as in Q4_0. Q4_1 has a minimum of its own instead.")]
        for _, values, diagnosis in other:
            if like(values):
                raise Wrong(diagnosis)
        raise Wrong(f"The block begins with {right[0]:.4f}, {right[1]:.4f}; yours with {got[0]:.4f}, {got[1]:.4f}. "
                    "Two 16-bit floats (\"<ee\"), then 16 bytes of codes.")
    return "Right: the same 32 weights as the gguf library, for two blocks."
