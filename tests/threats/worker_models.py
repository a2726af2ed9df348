"""A model and judges that processes besides the tests' own import."""

from __future__ import annotations

import time

from pyrobust.threats.models import Answer


def answer(prompt, attempt):
    time.sleep(0.02)
    if prompt.endswith("7"):
        raise PermissionError("not this one")
    return Answer(f"{prompt} {attempt} {sum(map(ord, prompt)) * (attempt + 3) % 97}", 2, 3, {"attempt": attempt})


def odd(prompt, answer):
    return int(answer.split()[-1]) % 2 == 1


def reply(question):
    return "yes" if "3" in question else "no"
