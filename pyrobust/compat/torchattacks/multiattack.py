"""An attack that runs several attacks in turn, each only on the images on which all earlier attacks failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.attacks.engine.queries import Queries
from pyrobust.errors import InputError, InputTypeError
from pyrobust.runner import Runner

from .attack import Attack
from .records import Batches
from .served import Adapted


class MultiAttack(Attack):
    """Runs several attacks in turn, each only on the images on which all earlier attacks failed.

    ``set_model``, ``set_device``, ``set_normalization_used`` and ``set_model_training_mode`` apply to all attacks.

    Args:
        attacks: two or more attacks on the same model.
        verbose: whether to print the success rates after each call.

    Raises:
        InputError: fewer than two attacks, or attacks on several models.
        InputTypeError: an item that is not an attack of this module.

    >>> from pyrobust.compat.torchattacks import FGSM, PGD
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> atk = MultiAttack([FGSM(model), PGD(model)])
    >>> atk(torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)).shape
    torch.Size([5, 1, 2, 2])
    """

    def __init__(self, attacks: Sequence[Attack], verbose: bool = False) -> None:
        attacks = list(attacks)
        for attack in attacks:
            if not isinstance(attack, Attack):
                raise InputTypeError("attacks", "attacks of this module", type(attack).__name__)
        if len(attacks) < 2:
            raise InputError("attacks", "at least two", len(attacks))
        self.attacks = attacks
        self.check_validity()
        super().__init__("MultiAttack", attacks[0].model)
        self.verbose = verbose
        self.normalization_used = attacks[0].normalization_used
        #: Number of images, and of those left after each attack, since the last save began.
        self._remaining: list[int] = []

    def check_validity(self) -> None:
        """Check that all attacks are on one model.

        Raises:
            InputError: several models.
        """
        models = {id(attack.model) for attack in self.attacks}
        if len(models) > 1:
            raise InputError("attacks", "attacks on one model", f"{len(models)} models")

    def forward(self, images: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """Generate adversarial images; images on which no attack succeeds are returned unchanged.

        The arguments are as for ``Attack.forward``.

        Raises:
            InputError: the labels are missing, or one of the attacks raises this error.
        """
        if labels is None:
            raise InputError("labels", "the labels of the images, which MultiAttack needs", "None")
        images, labels = images.detach().to(self.device), labels.detach().to(self.device)
        adversarial = images.clone()
        rows = torch.arange(len(images), device=images.device)
        remaining = [len(images)]
        for attack in self.attacks:
            if len(rows):
                points = attack._generate(images[rows], labels[rows])
                robust = self._correct(points, labels[rows])
                adversarial[rows[~robust]] = points[~robust].to(adversarial)
                rows = rows[robust]
            remaining.append(len(rows))
        if self.verbose:
            print(_shown(remaining))
        self._remaining = [
            before + now for before, now in zip(self._remaining or [0] * len(remaining), remaining, strict=True)
        ]
        return adversarial

    def set_model(self, model: nn.Module) -> None:
        """Attack another model from now on."""
        super().set_model(model)
        for attack in self.attacks:
            attack.set_model(model)

    def set_device(self, device: torch.device | str) -> None:
        """Run on this device from now on; the next call moves the model."""
        super().set_device(device)
        for attack in self.attacks:
            attack.set_device(device)

    def set_normalization_used(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        """Declare that images are normalized, with arguments as for ``Attack.set_normalization_used``."""
        super().set_normalization_used(mean, std)
        for attack in self.attacks:
            attack.set_normalization_used(mean, std)

    def set_model_training_mode(
        self, model_training: bool = False, batchnorm_training: bool = False, dropout_training: bool = False
    ) -> None:
        """Set the model's mode during attacks; arguments are as for ``Attack.set_model_training_mode``."""
        super().set_model_training_mode(model_training, batchnorm_training, dropout_training)
        for attack in self.attacks:
            attack.set_model_training_mode(model_training, batchnorm_training, dropout_training)

    def save(
        self,
        data_loader: Batches,
        save_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        return_verbose: bool = False,
        save_predictions: bool = False,
        save_clean_inputs: bool = False,
        save_type: str = "float",
    ) -> Any:
        """Attack all batches of a loader and save the adversarial images; arguments are as for ``Attack.save``.

        With return_verbose, the returned tuple has four values. The second value is a list of the success rates after
        each attack, in percent; the others are those that ``Attack.save`` returns.
        """
        shown, self.verbose, self._remaining = self.verbose, False, []
        try:
            result = super().save(
                data_loader,
                save_path,
                verbose,
                return_verbose,
                save_predictions=save_predictions,
                save_clean_inputs=save_clean_inputs,
                save_type=save_type,
            )
        finally:
            self.verbose = shown
        return (result[0], _success_rates(self._remaining), *result[1:]) if return_verbose else None

    def _progress_line(self, share: float, accuracy: float, distance: float, seconds: float) -> str:
        return f"{super()._progress_line(share, accuracy, distance, seconds)} / {_shown(self._remaining)}"

    def _correct(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return which images the model classifies correctly, bool [N]."""
        if self._modes[0]:
            with torch.no_grad():
                return self.get_logits(images).argmax(1) == labels
        judge = Queries(Runner(Adapted(self), device=self.device)).judge
        return judge.correct(images, labels.cpu(), "labels").to(images.device)


def _success_rates(remaining: list[int]) -> list[float]:
    """Return, for each attack, the percentage of the images on which it or an earlier attack succeeded."""
    return [100 * (1 - now / remaining[0]) for now in remaining[1:]] if remaining[0] else []


def _shown(remaining: list[int]) -> str:
    return "Attack success rate: " + " | ".join(f"{rate:.2f} %" for rate in _success_rates(remaining))
