"""``pyrobust verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.cli.sweep_command import Call, sweep_command
from pyrobust.runs.kinds.verify import Verify

if TYPE_CHECKING:
    from pyrobust.runs.run import Run


@sweep_command(Verify)
def verify(call: Call) -> Run:
    """Verify a classifier on a data set by bound propagation.

    Decides for each image whether any perturbation can change its class (verified, falsified or unknown), or searches
    for its certified radius. The proofs hold for the network itself, without randomness.
    Results are saved as they come: after a crash or Ctrl-C, run the same command again to resume.

    Example: pyrobust verify --model zoo:digits-smooth-0.25 --data digits --epsilon 0.02,0.05 --attack pgd

    Example: pyrobust verify --model zoo:digits-smooth-0.25 --data digits --radius --method crown --norm l2
    """
    question = {"radius": call["search"], **call.chosen("epsilons", "attack")}
    if not call["search"]:
        call.refuse("largest", why="without --radius")
    from pyrobust.bounds import BoundOptions
    from pyrobust.evaluation import verify_dataset
    from pyrobust.evaluation.verify import LARGEST, check_question

    options = BoundOptions(sound=not call["unsound"], **call.chosen("norm", "method", "clip", "semantics"))
    check_question(**question)
    largest = LARGEST if call["largest"] is None else call["largest"]
    images, model, epsilons = call.images, call.load_model(), call["epsilons"]
    radii = "radius" if epsilons is None else f"eps{','.join(f'{size:g}' for size in epsilons)}"
    with call.running(call["norm"], radii, method=call["method"]) as settings:
        run = verify_dataset(
            model,
            images,
            **question,
            largest=largest,
            seed=call["seed"],
            device=call.device,
            options=options,
            settings=settings,
        )
    return run
