"""llama.cpp's side of benchmarks/throughput.py: settings, then requests as lines of JSON on stdin; replies on stdout.

Runs under an interpreter that has xllamacpp (llama.cpp with its HTTP server in a wheel) and nothing of the course. All
prompts of a request are sent to the server at once; it decodes as many together as it has slots.
"""

import json
import os
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def serve(settings):
    """Start the server on the loopback device; return it and the version of its package."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = settings["model"], ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx = settings["slots"], settings["context"]    # a slot gets context / slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{settings['kv_type']}")
    params.cache_prompt, params.cache_ram_mib, params.n_threads_http = False, 0, settings["slots"] + 2
    return xllamacpp.Server(params), xllamacpp.__version__


def answer(address, ids, length):
    """Return the ids of one greedy answer of exactly this length."""
    body = {"prompt": ids, "n_predict": length, "temperature": 0.0, "samplers": ["temperature"], "ignore_eos": True,
            "cache_prompt": False, "return_tokens": True}
    request = urllib.request.Request(address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as reply:
        return json.load(reply)["tokens"]


def main():
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    server, version = serve(settings)
    address = server.listening_address

    def reply(message):
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    answer(address, settings["warm_up"], 8)
    reply({"version": version})
    for line in sys.stdin:
        asked = json.loads(line)
        with ThreadPoolExecutor(len(asked["ids"])) as pool:
            start = time.perf_counter()
            found = list(pool.map(lambda one: answer(address, *one), zip(asked["ids"], asked["lengths"], strict=True)))
            seconds = time.perf_counter() - start
        reply({"seconds": seconds, "answers": found})


if __name__ == "__main__":
    main()
