"""Lesson 09, Memory and devices."""

SCENES = {
    "a": "kept = net(x)",
    "b": "with torch.no_grad(): kept = net(x)",
    "c": "kept = net.state_dict()",
    "d": "kept = [weight.numel() for weight in net.parameters()]",
    "e": "kept = net.register_forward_hook(print)",
    "f": "kept = net.forward",
    "g": "try: net(None)\nexcept TypeError as error: kept = error",
    "h": "net.friend = net; kept = None",
}

CONTEXT = {
    "Prediction 9.1": lambda: (30_532_122_624, 3_353_032_704.0),
    "Prediction 9.2": lambda: (34_359_738_368, 13_476_831_744),
    "Prediction 9.3": lambda: (8 * 354_000_000, 354_000_000),
    "Exercise 9.3": lambda: (SCENES,),
}


def answers():
    yield "Prediction 9.1", 61, [(6.7, "other experts"), (6, "other experts"), (30, "two bytes"), (122, "float32"),
                                 (15, "Which parameters"), ("much", "A number of GB"), (0, "more than 0")]
    yield "Prediction 9.2", 34, [(2.1, "one sequence"), (4, "what the rule allows"), (17, "both are kept"),
                                 (100, "for each of 16"), (None, "A number of GB")]
    yield "Prediction 9.3", 2.8, [(0.35, "fetched once"), (15, "in one pass"), (5, "times the passes"),
                                  (True, "A number of GB")]

    def choose(card, weights, each):
        for name, size in weights.items():
            if (card - size) // each >= 1:
                return name, (card - size) // each
        return None

    def only_weights(card, weights, each):
        return next(((name, (card - size) // each) for name, size in weights.items() if size <= card), None)

    def ignores_weights(card, weights, each):
        found = choose(card, weights, each)
        return found and (found[0], card // each)

    def worst_first(card, weights, each):
        return choose(card, dict(reversed(weights.items())), each)

    def gives_up(card, weights, each):
        name, size = next(iter(weights.items()))
        return (name, (card - size) // each) if card - size >= each else None

    def parts(card, weights, each):
        found = next(((name, (card - size) / each) for name, size in weights.items() if card - size >= each), None)
        return found and (found[0], found[1] + 0.5)

    def never_none(card, weights, each):
        return choose(card, weights, each) or ("four", 1)

    def one_more(card, weights, each):
        found = choose(card, weights, each)
        return found and (found[0], found[1] + 1)

    yield "Exercise 9.1", choose, [
        (only_weights, "must hold one at least"), (ignores_weights, "the whole card"), (worst_first, "The best comes first"),
        (gives_up, "yours returned None"), (parts, "no parts of a sequence"), (never_none, "nothing works"),
        (one_more, "there is room for 4"), (lambda c, w, e: "sixteen", "Return the format's name"),
    ]

    def by_device(device_map, sizes, dot=True, longest=True, nested=True):
        total = {}
        for name, size in sizes.items():
            end = "." if dot else ""
            keys = [key for key in device_map if key == "" or (name + end).startswith(key + end)]
            if not nested:
                keys = [key for key in device_map if key == name.rsplit(".", 1)[0]]
            if not keys:
                continue
            place = device_map[max(keys, key=len) if longest else keys[0]]
            total[place] = total.get(place, 0) + size
        return total

    def all_keys(device_map, sizes):
        total = {}
        for key, place in device_map.items():
            for name, size in sizes.items():
                if key == "" or f"{name}.".startswith(f"{key}."):
                    total[place] = total.get(place, 0) + size
        return total

    def first_without_dot(device_map, sizes):
        return by_device(device_map, sizes, dot=False, longest=False)

    yield "Exercise 9.2", by_device, [
        (first_without_dot, "Compare with a dot"),
        (lambda m, s: by_device(m, s, longest=False), "the longest wins"),
        (lambda m, s: by_device(m, s, nested=False), "\"\" for the whole model"),
        (all_keys, "fits several keys"),
        (lambda m, s: s, "should be devices"),
        (lambda m, s: sum(s.values()), "A dictionary"),
    ]
    yield "Exercise 9.3", ["a", "c", "f", "g"], [
        (["c", "f", "g"], "the output has a graph"), (["a", "b", "c", "f", "g"], "numbers only"),
        (["a", "f", "g"], "not copies"),
        (["a", "c", "e", "f", "g"], "only weakly"), (["a", "c", "f"], "the traceback its frames"),
        (["a", "c", "f", "g", "h"], "gc.collect()"), (["a", "c", "g"], "holds its object"), ("acfg", "A list of letters"),
        (["z"], "no scene 'z'"),
    ]
