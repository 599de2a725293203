"""Watch greedy generation in a kernel: how close did the runner-up come to the chosen token?

Other processors round differently. A greedy text whose first and second logit once lay close together may come out
different on a learner's machine, so the build refuses to store such a text as one to be compared. Runs in the lesson's
kernel during a build, never in a learner's.
"""

import json
from pathlib import Path

# Modes that score guesses, rejected ones too, so that scores and written tokens do not pair. A lesson that uses them holds
# their text against the greedy one, and that one is watched.
GUESSING = {"prompt_lookup_num_tokens", "assistant_early_exit", "assistant_model"}


def install(log: str) -> None:
    """Wrap `GenerationMixin.generate`: each greedy call appends its smallest margin, in logits, to the file `log`."""
    import torch
    from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

    class Watch(LogitsProcessor):
        def __init__(self) -> None:
            self.margins: list = []

        def __call__(self, input_ids, scores):
            first, second = scores.float().topk(2, dim=-1).values.unbind(-1)
            self.margins.append(first - second)
            return scores

    plain = GenerationMixin.generate

    def generate(self, *args, **kwargs):
        config = kwargs.get("generation_config") or self.generation_config
        if kwargs.get("do_sample", config.do_sample) or (kwargs.get("num_beams", config.num_beams) or 1) > 1:
            return plain(self, *args, **kwargs)
        if kwargs.keys() & GUESSING:
            return plain(self, *args, **kwargs)
        watch = Watch()
        others = list(kwargs.pop("logits_processor", None) or [])
        output = plain(self, *args, logits_processor=LogitsProcessorList([*others, watch]), **kwargs)
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        eos = kwargs.get("eos_token_id", config.eos_token_id)
        ends = torch.tensor([eos] if isinstance(eos, int) else list(eos or []))
        new = sequences[:, -len(watch.margins):].cpu()
        stopped = torch.isin(new, ends).int().cumsum(-1) - torch.isin(new, ends).int() > 0   # after a row's own end
        margins = torch.stack(watch.margins, dim=1).cpu().masked_fill(stopped, float("inf"))
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"margin": float(margins.min())}) + "\n")
        return output

    GenerationMixin.generate = generate
