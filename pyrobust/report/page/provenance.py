"""Where a result comes from: what it promises in words, its parameters, and the command that repeats it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from pyrobust.attacks.catalogue import CATALOGUE, name_of
from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.findings import Finding
from pyrobust.checks import number_text
from pyrobust.evaluation import Run
from pyrobust.report.caption import describe_chunks
from pyrobust.report.page.subject import Source
from pyrobust.report.subjects import facts_of
from pyrobust.runs.reader import Header

_SPEC = re.compile(r"(zoo|robustbench):[\w.\-]+|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
# Options by the settings of attacks.
_OPTIONS = {"steps": "--steps", "n_queries": "--steps", "restarts": "--restarts", "version": "--version"}


def source_of(result: Run | CertificationLog | None, findings: Sequence[Finding] | None) -> Source:
    """Describe the file behind a run or a log.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=100, max_images=2, model_name="zoo:digits-smooth-0.25")
    >>> source_of(run, ()).command.split()[:6]
    ['pyrobust', 'certify', '--model', 'zoo:digits-smooth-0.25', '--data', 'digits']
    """
    assert result is not None
    header = result.header
    name = "(in memory)" if result.path is None else result.path.name
    if header is None:
        assert isinstance(result, CertificationLog)
        return Source(name, tuple(_promised_by_text(result)), tuple(_text_facts(result)), "", "", tuple(findings or ()))
    command, note = command_of(header)
    return Source(
        name,
        (
            *header.type.promises(header),
            *(describe_chunks(result.machines, result.set_aside) if isinstance(result, Run) else ()),
        ),
        tuple(_facts(header, len(result))),
        command,
        note,
        None if findings is None else tuple(findings),
    )


def _promised_by_text(log: CertificationLog) -> Iterator[str]:
    yield (
        f"A log of text: {', '.join(facts_of(log))}. Its author claims that no change of {log.norm} norm below the "
        "radius changes the prediction of the smoothed classifier, except with probability alpha for each image."
    )
    for origin in dict.fromkeys(log.origins.values()):
        names = [name for name, value in log.origins.items() if value == origin]
        yield f"{', '.join(names)}: {origin}."
    yield "Model and data are not stated, and the certificates cannot be checked without them."


def _text_facts(log: CertificationLog) -> Iterator[tuple[str, str]]:
    for name in ("n", "alpha", "sigma"):
        value = getattr(log, name)
        yield name, "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"
    yield "norm", log.norm
    yield "noise", log.noise
    yield "rows", f"{len(log):,}"


def _facts(header: Header, used: int) -> Iterator[tuple[str, str]]:
    yield "kind", header.kind
    yield "model", header.model
    yield "model sha256", header.model_sha256 or "unknown"
    yield "data", header.data
    yield "data sha256", header.data_sha256
    yield "images used", f"{used:,}"
    yield "guarantee", header.guarantee
    for name, value in header.parameters.items():
        entries = value.items() if isinstance(value, dict) else [(None, value)]
        for entry, item in entries:
            yield name if entry is None else f"{name}: {entry}", _value(item)
    if header.identity is not None:
        yield "machine", header.identity.machine
        if header.identity.code:
            yield "code of the model, sha256", ", ".join(header.identity.code)
    for name, version in header.versions.items():
        yield f"version of {name}", version


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value)


def command_of(header: Header) -> tuple[str, str]:
    """The command line that repeats a run, and what it does not say.

    The stored parameters are complete; a command line cannot say everything that Python can.

    >>> from pyrobust.evaluation import predict_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> name = "mynet:make, weights best.pt"
    >>> run = predict_dataset(smoother, load_data("digits"), n=100, max_images=1, model_name=name)
    >>> command_of(run.header)[0][:67]
    'pyrobust predict --model mynet:make --weights best.pt --data digits'
    """
    parameters = header.parameters
    notes = []
    model, _, weights = header.model.partition(", weights ")
    if not _SPEC.fullmatch(model):
        notes.append(f"the run was started in Python with a model called {model!r}: put a spec of yours in its place")
    if not _SPEC.fullmatch(header.data) and header.data.partition(":")[0] not in ("digits", "npz", "mnist", "folder"):
        notes.append(f"the data are called {header.data!r}: put a spec of yours in its place")
    if weights:
        notes.append("the folder of the weights is not stored")
    words = ["pyrobust", header.kind, "--model", model, *(["--weights", weights] if weights else [])]
    words += ["--data", header.data, *_METHODS[header.kind](header, notes)]
    for name, default in (("skip", 1), ("max", None)):
        if parameters[name] != default:
            words += [f"--{name}", str(parameters[name])]
    if "order" in parameters:
        words += ["--order", parameters["order"]]
    # A run whose method draws nothing has a seed of its order alone.
    seeds = {parameters.get(name) for name in ("seed", "order_seed")} - {None}
    if len(seeds) > 1:
        notes.append("its order and its method had seeds of their own, which the command line does not have")
    if seeds - {0}:
        words += ["--seed", str(parameters.get("seed") or parameters.get("order_seed"))]
    if parameters["shard"] is not None:
        words += ["--shard", "{}/{}".format(*parameters["shard"])]
    if parameters["device"] != "cpu":
        words += ["--device", parameters["device"]]
    if header.kind != "verify" and parameters["dtype"] != "float32":
        words += ["--dtype", parameters["dtype"]]
    if header.guarantee == "grid" and header.kind != "attack":
        words += ["--batch-size", str(parameters["batch_size"])]
    return shlex.join(map(str, words)), "; ".join(notes)


def _smoothing_words(header: Header, notes: list[str]) -> list[str]:
    parameters = header.parameters
    words = ["--sigma", repr(parameters["sigma"]), "--n", str(parameters["n"]), "--alpha", repr(parameters["alpha"])]
    if header.kind != "predict":
        words += ["--n0", str(parameters["n0"])]
    if header.kind == "sandwich":
        words += ["--n-attack", str(parameters["n_attack"]), "--alpha-attack", repr(parameters["alpha_attack"])]
        words += _clip_words(parameters["clip"])
        for name in ("steps", "draws"):
            words += [f"--{name}", str(parameters["settings"][name])] if name in parameters["settings"] else []
    if parameters["noise"] != "gaussian":
        words += ["--noise", parameters["noise"]]
    if parameters["normalize"] is not None:
        words += ["--normalize", "/".join(",".join(map(repr, part)) for part in parameters["normalize"])]
    if header.layout == "sequential":
        words += ["--method", "sequential", "--radii", ",".join(map(repr, parameters["radii"]))]
        words += ["--hybrid", repr(parameters["hybrid"]), *(["--two-class"] if parameters["two_class"] else [])]
    return [*words, "--grid", parameters.get("grid", "none")]


def _clip_words(clip: Sequence[float] | None) -> list[str]:
    if clip is None:
        return ["--clip", "none"]
    return [] if list(clip) == [0, 1] else [f"--clip={clip[0]!r}:{clip[1]!r}"]


def _verify_words(header: Header, notes: list[str]) -> list[str]:
    parameters = header.parameters
    words = ["--norm", parameters["norm"], "--method", parameters["method"]]
    if parameters["epsilons"] is None:
        words += ["--radius", "--largest", repr(parameters["largest"])]
    else:
        words += ["--epsilon", ",".join(map(number_text_exact, parameters["epsilons"]))]
    words += [*_clip_words(parameters["clip"]), "--semantics", parameters["semantics"]]
    if parameters["attack"] is not None:
        words += ["--attack", parameters["attack"].lower()]
    return words + ([] if parameters["sound"] else ["--unsound"])


def _sandwich_words(header: Header, notes: list[str]) -> list[str]:
    parameters = header.parameters
    if "sigma" in parameters:
        return _smoothing_words(header, notes)
    words = ["--norm", parameters["norm"], "--method", parameters["method"], "--semantics", parameters["semantics"]]
    if parameters["epsilons"]:
        words += ["--epsilon", ",".join(map(number_text_exact, parameters["epsilons"]))]
    return words + _clip_words(parameters["clip"])


def _attack_words(header: Header, notes: list[str]) -> list[str]:
    parameters = header.parameters
    settings = parameters["settings"]
    name = name_of(parameters["attack"], settings.get("loss"))
    words = ["--norm", parameters["norm"]]
    minimum = header.layout == "minimum"
    words += ["--minimum"] if minimum else ["--epsilon", number_text_exact(parameters["epsilon"])]
    words += _clip_words(parameters["clip"])
    if name is not None:
        words += ["--attack", name]
        for key, option in _OPTIONS.items():
            if key in settings and key in (CATALOGUE[name].steps, CATALOGUE[name].restarts):
                words += [option, str(settings[key])]
        if name == "autoattack":
            words += ["--version", str(settings.get("version", "standard"))]
    elif not (minimum and parameters["attack"] == "MinimumNormEnsemble"):
        words += ["--attack", "MODULE:CALLABLE"]
        notes.append(f"the attack {parameters['attack']} is one of yours: put its spec in place of MODULE:CALLABLE")
    if "grid" in parameters:
        words += ["--grid", parameters["grid"]]
    if not parameters["examples"]:
        words.append("--no-examples")
    if "certify_first" in parameters:
        words.append("--certify-first")
    if settings:
        notes.append("settings of the attack without an option have their defaults; the parameters list them all")
    return words


def number_text_exact(value: float) -> str:
    """Write a number so that the command line reads the same float: as a fraction of small integers, or in full.

    >>> number_text_exact(8 / 255), number_text_exact(0.1)
    ('8/255', '0.1')
    """
    text = number_text(value)
    return text if "/" in text or float(text) == value else repr(value)


_METHODS = {
    "certify": _smoothing_words,
    "predict": _smoothing_words,
    "verify": _verify_words,
    "attack": _attack_words,
    "sandwich": _sandwich_words,
}
