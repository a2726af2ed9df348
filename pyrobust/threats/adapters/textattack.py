"""Attacks of TextAttack (Morris et al., 2020) on any text classifier, and conversion of its results to verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import is_integer, items, shown
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.text.search import TextQueries
from pyrobust.threats.extras import extra_module
from pyrobust.threats.readers.rows import numbered
from pyrobust.threats.readers.textattack import RESULTS
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts

_INSTALL = "pip install textattack, in an environment with transformers below 5"


def textattack_model(classifier: Callable[[Sequence[str]], Any]) -> Any:
    """A text classifier as a ``textattack.models.wrappers.ModelWrapper``, for TextAttack's recipes and goal functions.

    Args:
        classifier: a callable from N strings to logits [N, K], a tensor or an array, as for the word attacks of
            ``pyrobust.text``.

    Returns:
        A model wrapper. If the classifier returns another shape, NaN or infinities, the wrapper raises ModelError,
        because TextAttack would treat such an output as a prediction.

    Raises:
        InputTypeError: not callable.
        MissingExtraError: TextAttack is not installed.

    >>> def classifier(texts):  # as logits: the number of "!", and 1
    ...     return [[text.count("!"), 1.0] for text in texts]
    >>> textattack_model(classifier)(["Great!!!", "Dull."])  # doctest: +SKIP
    tensor([[3., 1.],
            [0., 1.]], dtype=torch.float64)
    """
    if not callable(classifier):
        raise InputTypeError("classifier", "a function from strings to logits", shown(classifier))
    wrappers = extra_module("textattack.models.wrappers", "textattack_model", _INSTALL)

    queries = TextQueries(classifier)

    # mypy cannot follow a base class from a module that is imported here
    class Wrapper(wrappers.ModelWrapper):  # type: ignore[misc, name-defined]
        """A model wrapper that returns the logits of the texts that TextAttack sends."""

        def __init__(self) -> None:
            self.model = classifier

        def __call__(self, text_input_list: Sequence[str], **options: Any) -> Tensor:
            logits = queries(list(text_input_list)).logits
            if not torch.isfinite(logits).all():
                raise ModelError("classifier: expected finite logits, got NaN or infinities")
            return logits

    return Wrapper()


def attack_with_textattack(
    attack: Any, texts: Iterable[str], labels: Iterable[int], *, model: str = "", group: str = ""
) -> ThreatVerdicts:
    """Run a TextAttack attack on texts, one after the other.

    Args:
        attack: a ``textattack.Attack``, such as ``TextFoolerJin2019.build(textattack_model(classifier))``.
        texts: the texts.
        labels: the true label of each text.
        model: name of the classifier in the verdicts.
        group: name of the attack in the verdicts. By default, it is the class of the attack's search method.

    Returns:
        One verdict for each text, as in ``verdicts_from_textattack``. If the attack raised an exception, the status of
        the verdict is "error".

    Raises:
        InputError, InputTypeError: the numbers of texts and labels differ, or an argument is of the wrong type.

    >>> from textattack.attack_recipes import TextFoolerJin2019  # doctest: +SKIP
    >>> attack = TextFoolerJin2019.build(textattack_model(classifier))  # doctest: +SKIP
    >>> attack_with_textattack(attack, ["A good film.", "A dull one."], [1, 0], model="cnn")  # doctest: +SKIP
    ThreatVerdicts(verdicts=2, judged=2, missing=0)
    """
    texts, labels = items("texts", texts, "strings"), items("labels", labels, "integers")
    if not callable(getattr(attack, "attack", None)):
        raise InputTypeError("attack", "a textattack.Attack", shown(attack))
    if len(texts) != len(labels):
        raise InputError("labels", f"{len(texts)}, one for each text", len(labels))
    results: list[Any] = []
    for i, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            raise InputTypeError(f"texts[{i}]", "a string", shown(text))
        if not is_integer(label, 0, 1 << 31):
            raise InputError(f"labels[{i}]", "an integer of at least 0", shown(label))
        try:
            results.append(attack.attack(text, int(label)))
        except Exception as error:
            results.append(_Broken(text, int(label), error))
    method = type(getattr(attack, "search_method", attack)).__name__
    return verdicts_from_textattack(results, model=model, group=group or method)


class _Broken:
    """Stand-in for the result of an attack that raised an exception."""

    def __init__(self, text: str, label: int, error: Exception) -> None:
        self.text, self.label, self.error = text, label, error


def verdicts_from_textattack(results: Iterable[Any], *, model: str = "", group: str = "") -> ThreatVerdicts:
    """Return the verdicts of TextAttack's results, as `read_verdicts` reads them from TextAttack's CSV log.

    A successful attack is a success, and a failed attack is a failure. A skipped text was misclassified before the
    attack, and so was not attacked (status "unsubmitted"). A maximized result has a score but no criterion of success
    (status "unparsable"). The prompt and the behaviour are both the original text. The score is the value of the goal
    function, and the category is the true label.

    Args:
        results: ``AttackResult`` objects, from ``Attack.attack`` or ``Attacker.attack_dataset``.
        model: name of the attacked classifier.
        group: name of the attack.

    Returns:
        A row for each result, in the order of the results.

    Raises:
        InputTypeError: a result is not an ``AttackResult``.

    >>> attacker = textattack.Attacker(attack, dataset)  # doctest: +SKIP
    >>> verdicts_from_textattack(attacker.attack_dataset(), model="cnn", group="textfooler")  # doctest: +SKIP
    ThreatVerdicts(verdicts=10, judged=9, missing=1)
    """
    rows = []
    for i, result in enumerate(results):
        if isinstance(result, _Broken):
            rows.append(_verdict(i, result.text, result.label, model, group, success=None, status="error"))
            continue
        original, _ = _texts(result, f"results[{i}]")
        success, status = RESULTS[_kind(result)]
        goal = result.perturbed_result
        rows.append(
            _verdict(
                i,
                original.text,
                goal.ground_truth_output,
                model,
                group,
                success=success,
                status=status,
                score=float(goal.score),
                queries=int(goal.num_queries),
            )
        )
    return ThreatVerdicts(tuple(numbered(rows)))


def words_perturbed(result: Any) -> int:
    """Return the number of words that an attack of TextAttack changed, by edit distance as in TextAttack.

    Args:
        result: an ``AttackResult``.

    Raises:
        InputTypeError: the result is not an ``AttackResult``.

    >>> words_perturbed(attack.attack("A good film.", 1))  # doctest: +SKIP
    1
    """
    original, perturbed = _texts(result, "result")
    return int(original.words_diff_num(perturbed))


def _verdict(i: int, text: str, label: Any, model: str, group: str, **values: Any) -> ThreatVerdict:
    return ThreatVerdict(
        str(i),
        prompt=text,
        behaviour=text,
        group=group,
        threat="misclassification",
        judge="goal function",
        category=str(label),
        model=model,
        **values,
    )


def _texts(result: Any, name: str) -> tuple[Any, Any]:
    """Return the text before and after the attack; raise an error if ``result`` is not a result of TextAttack."""
    if _kind(result) not in RESULTS:
        raise InputTypeError(name, "an AttackResult of TextAttack", shown(result))
    return result.original_result.attacked_text, result.perturbed_result.attacked_text


def _kind(result: Any) -> str:
    """Return the kind of a result of TextAttack: Successful, Failed, Skipped or Maximized; "" for other objects."""
    names = [base.__name__.removesuffix("AttackResult") for base in type(result).__mro__]
    return next((name for name in names if name in RESULTS), "")
