"""The model and the device of an attack, both of which may be assigned, and the runner that is made from them."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.clip import ClipRange, clip_ends
from pyrobust.machine import existing_device
from pyrobust.runner import Classifier, Runner, enter_evaluation_mode

logger = logging.getLogger(__name__)


class AttackedModel:
    """Holds the model that an attack runs, and the device that it runs on.

    ``model`` and ``device`` behave like plain attributes. A subclass's constructor may assign them before it calls the
    constructor of this class. If the model is a module, it is moved to the device, permanently.

    >>> holder = AttackedModel()
    >>> holder.device = "cpu"
    >>> holder.model = nn.Linear(2, 2)
    >>> holder.device, holder.runner.model is holder.model
    (device(type='cpu'), True)
    """

    _attacked: Any = None
    _chosen_device: torch.device | None = None
    _runner_settings: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed
    _made_runner: Runner | None = None

    def _attack_model(self, model: Classifier, device: torch.device | str | None, **running: Any) -> None:
        """Set the attacked model, in evaluation mode; ``running`` holds the other arguments of its ``Runner``."""
        self._runner_settings = running
        self._chosen_device = None if device is None else existing_device(device)
        self._attacked, self._made_runner = model, None
        enter_evaluation_mode(self.runner.model)

    @property
    def model(self) -> Classifier:
        """The attacked model."""
        model: Classifier = self._attacked
        return model

    @model.setter
    def model(self, model: Classifier) -> None:
        self._attacked = model
        self._follow()

    @property
    def device(self) -> torch.device:
        """Where the model runs. Assigning a device moves a module there; None stands for the module's own device."""
        return self.runner.device if callable(self._attacked) else self._chosen_device or torch.device("cpu")

    @device.setter
    def device(self, device: torch.device | str | None) -> None:
        self._chosen_device = None if device is None else existing_device(device)
        self._follow()

    @property
    def runner(self) -> Runner:
        """The ``Runner`` that runs the model on the device."""
        if self._made_runner is None:
            self._made_runner = Runner(self._attacked, device=self._chosen_device, **self._runner_settings)
            if isinstance(self._attacked, nn.Module) and self._chosen_device is None:
                # a module may have parts on other devices than its first parameter
                self._attacked.to(self._made_runner.device)
        return self._made_runner

    def _cast(self, x: Tensor, clip: ClipRange | None) -> Tensor:
        """Cast float64 examples to the runner's ``input_dtype``, warning the first time; return others unchanged.

        A value in the clip range stays in it: if rounding would leave the range, the next float inside is taken.
        """
        runner = self.runner
        if not runner.casts(x):
            return x
        if not runner.warned_cast:
            runner.warned_cast = True
            logger.warning(
                "x: float64 beside a model that takes %s: cast, so that x_adv and distances are those of the cast x; "
                "pass x.to(%s), or use model.double()",
                str(runner.input_dtype).removeprefix("torch."),
                runner.input_dtype,
            )
        low, high = clip_ends(clip, tuple(x.shape[1:]), x.device)
        flat, cast = x.flatten(1), x.to(runner.input_dtype).flatten(1)
        infinity = torch.tensor(torch.inf, dtype=cast.dtype, device=x.device)
        cast = torch.where((flat >= low) & (cast.double() < low), cast.nextafter(infinity), cast)
        cast = torch.where((flat <= high) & (cast.double() > high), cast.nextafter(-infinity), cast)
        return cast.view_as(x)

    def _follow(self) -> None:
        """Make a new runner and move the model at once, since a subclass may run the model without the runner."""
        self._made_runner = None
        if callable(self._attacked):
            _ = self.runner
