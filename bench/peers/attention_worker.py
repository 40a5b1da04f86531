# SPDX-License-Identifier: Apache-2.0
"""One contender in a process of its own: attention_worker.py MODULE, orders by lines of JSON.

    {"open": id, "problem": {...}, "folder": path, "threads": n}: {"variants": {name: note}, "refused": {name: why}}
    {"call": [id, variant], "seconds": s, "clock": name}: {"ms": [...]}, calls until the time is spent, one at least
    {"rows": [id, variant], "of": [...], "to": path}: {}, rows of the last result as a file
    {"close": id}: {}

An order that fails is answered by {"error": sentence}. A process of its own keeps the threads and libraries of one
contender out of another's way.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from attention_problem import Problem, load_inputs


def sentence(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


class Worker:
    def __init__(self, module):
        self.module, self.calls, self.threads = module, {}, {}

    def open(self, order):
        problem, made, refused = Problem(**order["problem"]), {}, {}
        inputs = load_inputs(Path(order["folder"]))
        for name, make in self.module.variants(problem, inputs, order["threads"]).items():
            try:
                made[name] = make()
                made[name]()
            except Exception as error:
                made.pop(name, None)
                refused[name] = sentence(error)
        self.calls[order["open"]], self.threads[order["open"]] = made, order["threads"]
        notes = {name: call.note() if hasattr(call, "note") else "" for name, call in made.items()}
        return {"variants": notes, "refused": refused}

    def find(self, place):
        return self.calls[place[0]][place[1]]

    def call(self, order):
        call, ms, begun = self.find(order["call"]), [], time.perf_counter()
        cpu = order["clock"] == "cpu"
        clock = time.process_time if cpu else time.perf_counter
        milliseconds = 1e3 / self.threads[order["call"][0]] if cpu else 1e3
        while not ms or time.perf_counter() - begun < order["seconds"]:
            start = clock()
            call()
            ms.append(milliseconds * (clock() - start))
        return {"ms": ms}

    def rows(self, order):
        np.save(order["to"], self.find(order["rows"]).result()[:, order["of"]])
        return {}

    def close(self, order):
        del self.calls[order["close"]]
        return {}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print
    try:
        module = importlib.import_module(sys.argv[1])
        first = {"version": module.version()}
    except Exception as error:
        first = {"error": sentence(error)}
    print(json.dumps(first), file=answers)
    if "error" in first:
        return
    worker = Worker(module)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(worker, next(iter(order)))(order)
        except Exception as error:
            answer = {"error": sentence(error)}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
