# SPDX-License-Identifier: Apache-2.0
"""Contenders in processes of their own, timed in turns."""

import json
import os
import select
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TURN_SECONDS = 0.03  # of calls
REST_SECONDS = 0.02  # between turns: until the threads of the last contender have stopped to spin
MOST_ROUNDS = 10
PATIENCE_SECONDS = 300


class Gone(Exception):
    """A contender that does not run here; the text says why."""


class Contender:
    """The first of some Pythons that can import attention_NAME.py."""

    def __init__(self, name, pythons, environment):
        self.name, reasons = name, []
        for python in pythons:
            self.process = subprocess.Popen(
                [python, FOLDER / "attention_worker.py", f"attention_{name}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **environment},
                text=True,
            )
            try:
                self.version = self.answer()["version"]
                return
            except Gone as gone:
                reasons.append(str(gone))
        raise Gone("; ".join(dict.fromkeys(reasons)))

    def answer(self):
        if not select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]:
            self.stop()
            raise Gone(f"no answer for {PATIENCE_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            raise Gone(f"ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Gone(answer["error"])
        return answer

    def ask(self, **order):
        if self.process.poll() is not None:
            raise Gone(f"ended with status {self.process.returncode}")
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return self.answer()

    def stop(self):
        self.process.kill()
        self.process.wait()


@dataclass
class Entry:
    """One variant of a contender on one problem, and its times."""

    contender: Contender
    place: tuple  # problem's id, variant
    problem: object
    note: str
    ms: list = field(default_factory=list)
    spent: float = 0  # seconds of calls

    def turn(self, clock):
        answer = self.contender.ask(call=self.place, seconds=TURN_SECONDS, clock=clock)["ms"]
        self.spent += 1e-3 * sum(answer)
        self.ms += answer[1:] or answer  # the first of several begins with cold caches
        time.sleep(REST_SECONDS)


def enter(contender, problem, folder, threads, refusals, only=None):
    """Entries of a contender's variants on a problem; refusals receives sentences."""
    place = f"{problem}, {threads}"
    try:
        answer = contender.ask(open=place, problem=asdict(problem), folder=str(folder), threads=threads)
    except Gone as gone:
        refusals.append(f"{contender.version}: {gone}")
        return []
    refusals += [f"{contender.version} {name}: {why}" for name, why in answer["refused"].items()]
    return [
        Entry(contender, (place, name), problem, note)
        for name, note in answer["variants"].items()
        if only is None or name in only
    ]


def leave(entries):
    for contender, place in {(e.contender, e.place[0]): None for e in entries}:
        try:
            contender.ask(close=place)
        except Gone:
            pass


def compete(entries, seconds, refusals, least=1, clock="wall"):
    """
    MOST_ROUNDS in which each entry has a turn; one that has spent its seconds stops after the least of them. Returns
    those that got through. The clock "cpu" counts what the threads of a process ran, a thread's share of it.
    """
    running = list(entries)
    for round_number in range(MOST_ROUNDS):
        for entry in list(running):
            if round_number >= least and entry.spent >= seconds:
                continue
            try:
                entry.turn(clock)
            except Gone as gone:
                refusals.append(f"{entry.contender.version} {entry.place[1]}: {gone}")
                running.remove(entry)
    return running


def start(names, pythons, environment, refusals):
    """{name: Contender} of those that run here."""
    contenders = {}
    for name in names:
        try:
            contenders[name] = Contender(name, pythons, environment)
        except Gone as gone:
            refusals.append(f"{name}: {gone}")
    return contenders
