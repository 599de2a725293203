"""vLLM's side of benchmarks/throughput.py: settings, then requests as lines of JSON on stdin; replies on stdout.

Runs under an interpreter that has vLLM and nothing of the course. What vLLM prints goes to stderr.
"""

import json
import os
import sys
import time


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    import vllm
    from vllm.platforms import current_platform

    # On a GPU vLLM would take nine tenths of the memory, and the other ways are in there, too.
    more = {"gpu_memory_utilization": 0.4} if current_platform.is_cuda() else {}
    llm = vllm.LLM(model=settings["model"], dtype=settings["dtype"], max_model_len=settings["max_model_len"],
                   enforce_eager=True, seed=0, disable_log_stats=True, **more)

    def answers(ids, lengths):
        wanted = [vllm.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
        made = llm.generate([{"prompt_token_ids": one} for one in ids], wanted, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made]

    def reply(message):
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    answers([settings["warm_up"]], [8])
    reply({"version": vllm.__version__})
    for line in sys.stdin:
        asked = json.loads(line)
        llm.reset_prefix_cache()  # or the second round would find the prompts of the first already read
        start = time.perf_counter()
        found = answers(asked["ids"], asked["lengths"])
        reply({"seconds": time.perf_counter() - start, "answers": found})


if __name__ == "__main__":  # vLLM's workers import this file again
    main()
