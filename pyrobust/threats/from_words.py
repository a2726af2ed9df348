"""Verdicts of word substitution attacks."""

from __future__ import annotations

import math

from pyrobust.checks import kind, shown
from pyrobust.errors import InputTypeError
from pyrobust.text import WordAttackResult

from .readers.rows import numbered
from .verdicts import ThreatVerdict, ThreatVerdicts


def word_attack_verdicts(
    result: WordAttackResult, *, model: str = "", group: str = "word substitution"
) -> ThreatVerdicts:
    """Convert the outcomes of a word substitution attack, one verdict for each text.

    In each verdict, the original text is both the prompt and the behaviour. The judge is called "prediction", because
    the classifier's prediction decides whether the attack succeeded. A text that is misclassified without any change is
    not attacked. Its status is "unsubmitted", as in TextAttack's logs. The category of a verdict is the label of the
    text or, in a targeted attack, the target.

    Args:
        result: the result of ``WordSubstitution(...).attack(texts, y)``.
        model: name of the classifier.
        group: name of the attack.

    Raises:
        InputTypeError: an argument of the wrong type.

    >>> from pyrobust.text import WordSubstitution
    >>> from pyrobust.threats import threat_success_rate
    >>> model = lambda texts: [[0.0, text.count("good") - 0.5] for text in texts]
    >>> attack = WordSubstitution(model, {"good": ["fine"]})
    >>> verdicts = word_attack_verdicts(attack.attack(["A good film.", "A film.", "A bore."], [1, 0, 1]))
    >>> verdicts
    ThreatVerdicts(verdicts=3, judged=2, missing=1)
    >>> [(row.success, row.queries) for row in verdicts]
    [(True, 2), (False, 1), (None, 1)]
    """
    if not isinstance(result, WordAttackResult):
        raise InputTypeError("result", "a WordAttackResult", kind(result))
    for name, value in (("model", model), ("group", group)):
        if not isinstance(value, str):
            raise InputTypeError(name, "a string", shown(value))
    rows = [
        ThreatVerdict(
            id=str(i),
            prompt=text,
            behaviour=text,
            group=group,
            threat="targeted" if result.targeted else "misclassification",
            success=result.success[i] if result.attacked[i] else None,
            score=result.margins[i] if math.isfinite(result.margins[i]) else None,
            judge="prediction",
            status="judged" if result.attacked[i] else "unsubmitted",
            queries=result.queries[i],
            category=str(result.labels[i]),
            model=model,
        )
        for i, text in enumerate(result.originals)
    ]
    return ThreatVerdicts(tuple(numbered(rows)))
