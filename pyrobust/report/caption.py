"""What stands under every rate: everything that it depends on."""

from __future__ import annotations

from pyrobust.evaluation import Run

# Enough of a hash to tell any two data sets or models apart that somebody has side by side.
_DIGITS = 12


def describe_run(run: Run) -> list[str]:
    """Method, norm, noise, budget, confidence, hashes and coverage of a run, a line each.

    Args:
        run: of any kind.

    Returns:
        Lines of text, the statement of what is certified first.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=100, max_images=2, model_name="zoo:digits-smooth-0.25")
    >>> print(describe_run(run)[0])
    Smoothed classifier, gaussian noise of sigma 0.25; l2 radii, method fixed, guarantee real
    """
    header, parameters = run.header, run.parameters
    what = f"Smoothed classifier, {parameters['noise']} noise of sigma {parameters['sigma']:g}"
    if run.kind == "certify":
        what += f"; {parameters['norm']} radii, method {parameters['method']}, guarantee {header.guarantee}"
        budget = f"n0 {parameters['n0']}, n {parameters['n']} samples an image"
        confidence = f"each certificate wrong with probability at most alpha {parameters['alpha']:g}"
    else:
        what += "; predictions by the two-sided binomial test"
        budget = f"n {parameters['n']} samples an image"
        confidence = f"each prediction wrong with probability at most alpha {parameters['alpha']:g}"
    selection = [f"one in {parameters['skip']}" if parameters["skip"] > 1 else ""]
    selection.append(f"the first {parameters['max']}" if parameters["max"] is not None else "")
    selection.append("shard {}/{}".format(*parameters["shard"]) if parameters["shard"] is not None else "")
    selection = [part for part in selection if part]
    chosen = f" ({', '.join(selection)})" if selection else ""
    unfinished = "" if run.complete else f"; NOT FINISHED: {len(run)} of {len(run.expected)} images"
    return [
        what,
        f"{budget}, seed {parameters['seed']}; {confidence}",
        f"Model {header.model}, sha256 {header.model_sha256[:_DIGITS] or 'unknown'}, {parameters['dtype']}",
        f"Data {header.data}, sha256 {header.data_sha256[:_DIGITS]}, {len(run)} of {parameters['images']} images"
        f"{chosen}{unfinished}",
    ]
