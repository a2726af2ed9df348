"""Captions of rates: the method, budget, confidence, model and data that they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyrobust.attacks.certified_first import GUARANTEE
from pyrobust.checks import first_values, number_text
from pyrobust.errors import InputTypeError
from pyrobust.evaluation import Run
from pyrobust.runs.digests import UNGUARDED

# Digits of a hash: enough to tell apart the data sets and models that one compares.
_DIGITS = 12
# Radii and epsilons listed in a caption; the table has all of them.
_MOST = 12
# Chunks that were set aside and are listed in a caption, and characters of their errors.
_CHUNKS, _ERROR = 3, 100
#: What the intervals of a curve under attack mean.
POINTWISE = "Intervals are pointwise, of the accuracy under this attack, and no lower bound of robustness"
#: Why no average of certified radii ranks classifiers.
ACR_NOTE = (
    "The average certified radius ranks nothing here: easy images outweigh all others, it moves with n and alpha, and "
    "a constant classifier reaches any value with a large enough sigma (Sun, Mao, Müller and Vechev, 2025)."
)
ACR_NOTE_OF_PROOFS = (
    "The average certified radius ranks nothing: easy images outweigh all others, and a constant classifier has an "
    "unlimited one."
)
#: What the p_A of a run is.
P_A_NOTE = (
    "p_A: k/n, an estimate and no bound, with k of the n noisy samples of an image in the right class; 0 where the "
    "smoothed prediction is wrong or abstains. Area: under the survival curve from 1/2 to 1, over its largest possible."
)
NO_P_A_NOTE = (
    "No distribution of p_A: sequential sampling stops once the radii are decided, and its votes then favour a side."
)
#: What an attack leaves out that certifies first.
CERTIFIED_FIRST = f"Certified first: images proved robust ({GUARANTEE}) are not attacked"


def checked_run(run: Run) -> Run:
    """Return a run; raise InputTypeError for anything else."""
    if not isinstance(run, Run):
        raise InputTypeError(f"run: expected a Run, got {type(run).__name__}; Run(path) reads one")
    return run


def describe_run(run: Run) -> list[str]:
    """Method, norm, noise, budget, confidence, hashes and coverage of a run, a line each.

    Args:
        run: of any kind.

    Returns:
        Lines of text; the first states what is certified or attacked.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25, grid=None)
    >>> run = certify_dataset(smoother, load_data("digits"), n=100, max_images=2, model_name="zoo:digits-smooth-0.25")
    >>> print(describe_run(run)[0])
    Smoothed classifier, gaussian noise of sigma 0.25; l2 radii, method fixed, guarantee real
    """
    header, parameters = checked_run(run).header, run.parameters
    unfinished = "" if run.complete else f"; NOT FINISHED: {len(run)} of {len(run.expected)} images"
    return [
        *_of_kind(run),
        describe_model(header.model, header.model_sha256, parameters["dtype"]),
        describe_data(header.data, header.data_sha256, parameters, len(run)) + unfinished,
        *describe_chunks(run.machines, run.set_aside),
        *([] if run.guarded else [f"Unguarded: {UNGUARDED}"]),
    ]


def describe_chunks(machines: dict[str, int], set_aside: dict[int, str]) -> list[str]:
    """Name the machines if they are more than one, and the chunks that were set aside; no line for an ordinary run.

    >>> describe_chunks({"cpu": 96, "gpu": 32}, {128: "worker lost: signal 9"})
    ['Machines: 96 images by cpu; 32 images by gpu', 'SET ASIDE: 1 chunk (from image 128: worker lost: signal 9)']
    """
    lines = []
    if len(machines) > 1:
        lines.append("Machines: " + "; ".join(f"{images} images by {name}" for name, images in machines.items()))
    if set_aside:
        chunks = "chunk" if len(set_aside) == 1 else "chunks"
        reasons = [f"from image {first}: {error[:_ERROR]}" for first, error in sorted(set_aside.items())[:_CHUNKS]]
        more = ["…"] if len(set_aside) > _CHUNKS else []
        lines.append(f"SET ASIDE: {len(set_aside)} {chunks} ({'; '.join(reasons + more)})")
    return lines


def _of_kind(run: Run) -> list[str]:
    if run.kind == "verify":
        return _verified(run)
    if run.header.layout == "sandwich":
        return _bounded(run)
    return _attacked(run.parameters) if run.kind == "attack" else _smoothed(run)


def describe_attack(name: str, norm: str, clip: Sequence[float], settings: dict[str, Any], seed: int | None) -> str:
    """Describe an attack in one line: norm, clip range, seed and budget.

    The settings of an ``AutoAttack``'s attacks are named "attack.setting".

    >>> describe_attack("FGSM", "l2", [0.0, 1.0], {"loss": "ce"}, 0)
    'FGSM in l2 and [0, 1], seed 0; loss ce'
    """
    attacks = planned_attacks(name, settings)
    if attacks != [name]:
        parts = ", ".join(_part(attack, settings) for attack in attacks)
        budget = [f"{describe_budget(name, settings)}: {parts}".removeprefix(": ")]
    else:
        budget = [f"{key} {value}" for key, value in settings.items() if value is not None]
    begin = f"{name} in {norm} and {_range(clip)}" + ("" if seed is None else f", seed {seed}")
    return "; ".join([begin, ", ".join(budget)]) if budget else begin


def planned_attacks(name: str, settings: dict[str, Any]) -> list[str]:
    """List the attacks that an ensemble runs, in order; any other attack is listed alone.

    >>> planned_attacks("AutoAttack", {"attacks": "apgd-ce, square"})
    ['apgd-ce', 'square']
    """
    attacks = settings.get("attacks")
    return attacks.split(", ") if isinstance(attacks, str) else [name]


def describe_budget(name: str, settings: dict[str, Any]) -> str:
    """Describe the budget of an attack: its version, steps, queries, draws and starts, as far as it has them.

    >>> describe_budget("PGD", {"steps": 40, "restarts": 5, "loss": "ce"})
    '40 steps from 5 starts'
    >>> describe_budget("APGD", {"steps": 100, "draws": 20})
    '100 steps of 20 draws'
    """
    if planned_attacks(name, settings) != [name]:
        return f"version {settings['version']}" if "version" in settings else ""
    words = {"steps": "steps", "n_queries": "queries"}
    budget = [f"{settings[key]} {word}" for key, word in words.items() if key in settings]
    draws = f" of {settings['draws']} draws" if "draws" in settings else ""
    return (
        ", ".join(budget) + draws + (f" from {settings['restarts']} starts" if settings.get("restarts", 1) != 1 else "")
    )


def describe_model(name: str, sha256: str, dtype: str) -> str:
    """Describe a model in one line: name, hash and dtype.

    >>> describe_model("net", "", "float32")
    'Model net, sha256 unknown, float32'
    """
    return f"Model {name}, sha256 {sha256[:_DIGITS] or 'unknown'}, {dtype}"


def describe_data(name: str, sha256: str, selection: dict[str, Any], used: int) -> str:
    """Describe a data set in one line: name, hash, and how many of its images were used and selected how.

    ``selection`` holds the parameters "images", "skip", "max" and "shard" of a run, ``used`` is its number of results.

    >>> describe_data("digits", "b" * 64, {"images": 382, "skip": 2, "max": None, "shard": None}, 191)
    'Data digits, sha256 bbbbbbbbbbbb, 191 of 382 images (one in 2)'
    >>> describe_data("digits", "b" * 64, {"images": 300, "skip": 1, "max": 400, "shard": None}, 300)
    'Data digits, sha256 bbbbbbbbbbbb, 300 of 300 images'
    """
    parts = [f"one in {selection['skip']}" if selection["skip"] > 1 else ""]
    # A maximum beyond the last image selects nothing.
    limited = selection["max"] is not None and selection["max"] <= len(range(0, selection["images"], selection["skip"]))
    parts.append(f"the first {selection['max']}" if limited else "")
    parts.append("shard {}/{}".format(*selection["shard"]) if selection["shard"] is not None else "")
    parts = [part for part in parts if part]
    chosen = f" ({', '.join(parts)})" if parts else ""
    return f"Data {name}, sha256 {sha256[:_DIGITS]}, {used} of {selection['images']} images{chosen}"


def _smoothed(run: Run) -> list[str]:
    parameters = run.parameters
    what = f"Smoothed classifier, {parameters['noise']} noise of sigma {parameters['sigma']:g}"
    if run.kind == "certify":
        what += f"; {parameters['norm']} radii, method {parameters['method']}, {_guarantee(run)}"
        budget = f"n0 {parameters['n0']}, n {parameters['n']} samples an image"
        if run.header.layout == "sequential":
            what += f"; decided: radius {first_values(parameters['radii'], number_text, _MOST)}"
            what += f"; {parameters['hybrid']:g} of alpha for one bound at n" if parameters["hybrid"] else ""
            what += "; two classes bounded" if parameters["two_class"] else ""
            budget = f"n0 {parameters['n0']}, n at most {parameters['n']} samples an image"
        confidence = f"each certificate wrong with probability at most alpha {parameters['alpha']:g}"
    elif run.kind == "sandwich":
        what += f"; certified and attacked {parameters['norm']} distances, {_guarantee(run)}"
        budget = f"n0 {parameters['n0']}, n {parameters['n']} samples an image; {parameters['n_attack']} at its x_adv"
        confidence = (
            f"each certificate wrong with probability at most alpha {parameters['alpha']:g}, each attack at most "
            f"{parameters['alpha_attack']:g}; {_range(parameters['clip'])}, attack of "
            f"{describe_budget(parameters['attack'], parameters['settings'])}"
        )
    else:
        what += f"; predictions by the two-sided binomial test, {_guarantee(run)}"
        budget = f"n {parameters['n']} samples an image"
        confidence = f"each prediction wrong with probability at most alpha {parameters['alpha']:g}"
    return [what, f"{budget}, seed {parameters['seed']}; {confidence}"]


def _guarantee(run: Run) -> str:
    step = run.parameters.get("grid")
    if not step:
        return f"guarantee {run.header.guarantee}"
    return (
        f"guarantee grid: sound in floating point on the grid of {step}, in batches of {run.parameters['batch_size']}"
    )


def _attacked(parameters: dict[str, Any]) -> list[str]:
    attack = describe_attack(*(parameters[name] for name in ("attack", "norm", "clip", "settings", "seed")))
    if "minimum" in parameters:
        steps = f" in steps of {parameters['grid']}" if "grid" in parameters else ""
        return [
            f"Nearest adversarial examples, {parameters['norm']}{steps}; robust accuracy is an upper bound at every "
            "epsilon",
            POINTWISE,
            attack,
        ]
    budget = f"{parameters['norm']} epsilon {number_text(parameters['epsilon'])}"
    if "grid" in parameters:
        budget += f" in steps of {parameters['grid']}"
    lines = [f"Under attack, {budget}; robust accuracy is an upper bound", attack]
    if "certify_first" in parameters:
        lines.append(CERTIFIED_FIRST)
    return lines


def _range(clip: Sequence[float]) -> str:
    return f"[{number_text(clip[0])}, {number_text(clip[1])}]"


def _verified(run: Run) -> list[str]:
    parameters = run.parameters
    method, norm, clip, attack = (parameters[name] for name in ("method", "norm", "clip", "attack"))
    what = "ibp, crown-ibp, crown in turn" if method == "cascade" else method
    where = "no clip range" if clip is None else f"clip range {_range(clip)}"
    if parameters["epsilons"] is None:
        budget = f"certified radii up to {number_text(parameters['largest'])}"
    else:
        budget = f"epsilon {first_values(parameters['epsilons'], number_text, _MOST)}"
    lines = [
        f"{'Lipschitz constant' if method == 'lipschitz' else f'Bound propagation, {what}'}; {norm}, {where}; {budget}",
        f"guarantee {run.header.guarantee}, semantics {parameters['semantics']}"
        + ("" if parameters["sound"] else "; NOT SOUND: plain floating-point bounds"),
    ]
    if attack is not None:
        lines.append(describe_attack(attack, norm, clip, parameters["settings"], parameters["seed"]))
    return lines


def _bounded(run: Run) -> list[str]:
    parameters = run.parameters
    methods = "lipschitz, ibp, crown-ibp, crown" if parameters["semantics"] == "real" else "ibp, crown-ibp, crown"
    what = methods if parameters["method"] == "cascade" else parameters["method"]
    epsilons = parameters["epsilons"]
    confirmed = f"; AutoAttack at {first_values(epsilons, number_text, _MOST)}" if epsilons else ""
    attack = describe_attack(*(parameters[name] for name in ("attack", "norm", "clip", "settings", "seed")))
    return [
        f"Certified radius (best of {what}) and nearest adversarial example; {parameters['norm']}",
        f"guarantee {run.header.guarantee}, semantics {parameters['semantics']}",
        attack + confirmed,
    ]


def _part(attack: str, settings: dict[str, Any]) -> str:
    """Describe one attack of an ensemble with its budget."""
    prefix = f"{attack}."
    own = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    return f"{attack} {describe_budget(attack, own)}".rstrip()
