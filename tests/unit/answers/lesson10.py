"""Lesson 10, Quantization."""

import struct

CONTEXT = {
    "Prediction 10.1": lambda: (0.78,),
    "Prediction 10.2": lambda: (116_426_752,),
}


def answers():
    import torch

    yield "Prediction 10.1", 0.8, [(1 / 15, "crowd around zero"), (0.5, "standard deviations out"), (1.0, "half a step on"),
                                   (80, "between 0 and 1"), ("most", "A share")]
    yield "Prediction 10.2", 116, [(67, "a quarter of bfloat16"), (134.5, "That is half"), (110, "left out the scales"),
                                   (76, "4.5 bits for every weight"), (200, "Count three things"),
                                   (116_000_000, "millions of bytes"), (True, "A number of MB")]

    def absmax(weight, bits, group, top=None, safe=True, rounded=True, dtype=torch.int8):
        rows, columns = weight.shape
        parts = weight.reshape(rows, columns // group, group)
        scales = parts.abs().amax(-1) / (top or 2 ** (bits - 1) - 1)
        scales = torch.where(scales == 0, 1.0, scales) if safe else scales
        codes = parts / scales[..., None]
        codes = codes.round() if rounded else codes
        return codes.to(dtype).reshape(rows, columns), scales

    def in_place(weight, bits, group):
        result = absmax(weight, bits, group)
        weight.mul_(2)
        return result

    def one_scale(weight, bits, group):
        scale = weight.abs().max() / (2 ** (bits - 1) - 1)
        return (weight / scale).round().to(torch.int8), scale

    def columnwise(weight, bits, group):
        rows, columns = weight.shape
        parts = weight.reshape(rows, group, columns // group)
        top = 2 ** (bits - 1) - 1
        scales = (parts.abs().amax(1) / top).clamp(min=1e-9)
        return (parts / scales[:, None]).round().to(torch.int8).reshape(rows, columns), scales

    yield "Exercise 10.1", absmax, [
        (lambda w, b, g: absmax(w, b, g, top=2 ** (b - 1) + 0.0), "stay within"),
        (lambda w, b, g: absmax(w, b, g, top=2 ** (b - 1) - 2), "should get code"),
        (lambda w, b, g: absmax(w, b, g, safe=False), "group of zeros"),
        (lambda w, b, g: absmax(w, b, g, rounded=False), "cut off towards zero"),
        (lambda w, b, g: absmax(w, b, g, rounded=False, dtype=torch.float32), "not whole numbers"),
        (lambda w, b, g: absmax(w, b, g, dtype=torch.int32), "should be int8"),
        (lambda w, b, g: absmax(w, b, g)[0], "Return two tensors"),
        (lambda w, b, g: (absmax(w, b, g)[0], absmax(w, b, g)[1].flatten()), "scales should be [6, 4]"),
        (lambda w, b, g: (absmax(w, b, g)[0].reshape(-1, g), absmax(w, b, g)[1]), "shape of the weight"),
        (one_scale, "one scale for the whole tensor"), (in_place, "changed the weight"),
        (columnwise, "meet the columns"),
    ]

    def pack(codes):
        return codes[0::2] * 16 + codes[1::2]

    yield "Exercise 10.2", pack, [
        (lambda codes: codes[1::2] * 16 + codes[0::2], "swapped"),
        (lambda codes: codes[: len(codes) // 2] * 16 + codes[len(codes) // 2 :], "Neighbours belong together"),
        (lambda codes: codes[0::2] + codes[1::2], "added the pair"),
        (lambda codes: codes[0::2] * 8 + codes[1::2], "counts sixteens"),
        (lambda codes: codes, "make 4 bytes"), (lambda codes: pack(codes).int(), "should be uint8"),
        (lambda codes: pack(codes).tolist(), "A tensor was asked for"),
        (lambda codes: codes.mul_(16)[0::2] | 1, "changed the codes"),
        (lambda codes: pack(codes) ^ 1, "should come"),
    ]

    def bits(tensors):
        return sum(w // b * s for w, b, s in tensors) * 8 / sum(w for w, *_ in tensors)

    yield "Exercise 10.3", bits, [
        (lambda tensors: bits(tensors) / 8, "A byte has 8 bits"),
        (lambda tensors: sum(s * 8 / b for _, b, s in tensors) / len(tensors), "mean of the types"),
        (lambda tensors: sum(w for w, *_ in tensors) / sum(w // b * s for w, b, s in tensors), "other way round"),
        (lambda tensors: sum(w // b * s for w, b, s in tensors) * 8, "Divide by the weights"),
        (lambda tensors: 4, "codes alone"), (lambda tensors: "4.5", "A number of bits"), (lambda tensors: 4.6, "should be 4.5"),
    ]

    def block(data, order="split", shift=0.0, sign=1, swap=False):
        scale, low, *pairs = struct.unpack("<ee16B", data)
        scale, low = (low, scale) if swap else (scale, low)
        lower, upper = [pair & 15 for pair in pairs], [pair >> 4 for pair in pairs]
        codes = {"split": lower + upper, "upper": upper + lower,
                 "pairs": [code for both in zip(lower, upper, strict=True) for code in both]}[order]
        return [(code - shift) * scale + sign * low for code in codes]

    yield "Exercise 10.4", block, [
        (lambda data: block(data, order="pairs"), "side by side"),
        (lambda data: block(data, order="upper"), "halves are swapped"),
        (lambda data: block(data, sign=0), "minimum is missing"), (lambda data: block(data, sign=-1), "not subtracted"),
        (lambda data: block(data, swap=True), "scale stands first"), (lambda data: block(data, sign=0, shift=8), "as in Q4_0"),
        (lambda data: block(data)[:16], "holds 32 weights"), (lambda data: 3.5, "A list of 32 numbers"),
        (lambda data: [value * 3 for value in block(data)], "The block begins with"),
    ]
