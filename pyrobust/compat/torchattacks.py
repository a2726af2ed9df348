"""Drop-in replacement for torchattacks (Kim, 2020, "Torchattacks: a PyTorch repository for adversarial attacks").

Change ``import torchattacks`` to ``import pyrobust.compat.torchattacks as torchattacks``. It has FGSM, PGD and BIM.
Differences:

- a fooled example leaves the attack at once: the result is the first point that fooled, not the last of all steps; a
  misclassified image is returned unchanged; for an example that is not fooled, the point of the highest loss is
  returned;
- the random start depends on a seed and on the number of images attacked so far, and torch's generators are not
  touched;
- perturbations lie exactly inside the ball and [0, 1], and images outside [0, 1] are an error, where torchattacks clips
  them: call set_normalization_used if images are normalized;
- set_return_type("int") rounds toward the image: for 8-bit images eps still holds, up to 1e-4/255.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pyrobust.attacks import fgsm, pgd
from pyrobust.attacks.engine import BatchAttack
from pyrobust.checks import count, numbers
from pyrobust.errors import InputError, InputTypeError

TargetMap: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(images, labels) → target labels."""

# Rounding error allowed outside [0, 1] after denormalizing, and between a value and a level k/255.
_ROUNDING = 1e-4


class Attack(abc.ABC):
    """Base class of the attacks, which map images and labels to adversarial images.

    Args:
        name: name of the attack.
        model: maps images [N, C, H, W], normalized if ``set_normalization_used`` was called, to logits.
        seed: random seed of random starts and random targets.

    Raises:
        InputTypeError: a model that is not a module.
    """

    def __init__(self, name: str, model: nn.Module, *, seed: int = 0) -> None:
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.attack = name
        self.set_model(model)
        tensor = next(model.parameters(), None)
        self.device = torch.device("cpu") if tensor is None else tensor.device
        self.supported_mode = ["default", "targeted"]
        self.attack_mode = "default"
        self.targeted = False
        self.normalization_used: dict[str, Tensor] | None = None
        self.return_type = "float"
        self._target_map: TargetMap | None = None
        self._seed = seed
        self._seen = 0

    @abc.abstractmethod
    def _native(self, model: nn.Module) -> BatchAttack:
        """Make the attack with the current settings."""

    def set_model(self, model: nn.Module) -> None:
        """Attack another model from now on."""
        self.model = model
        self.model_name = type(model).__name__

    def set_device(self, device: torch.device | str) -> None:
        """Run on this device from now on; the next call moves the model."""
        self.device = torch.device(device)

    def set_normalization_used(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Declare that images are (· − mean[c]) / std[c]; eps and alpha stay in the units of [0, 1].

        Raises:
            InputError: std does not hold one positive number for each mean.
            InputTypeError: mean or std does not hold numbers.
        """
        used = {name: torch.tensor(numbers(name, v), dtype=torch.float32) for name, v in (("mean", mean), ("std", std))}
        if used["mean"].dim() != 1 or used["mean"].shape != used["std"].shape or not bool((used["std"] > 0).all()):
            raise InputError(f"std: expected a positive number for each channel of mean, {mean}, got {std}")
        self.normalization_used = {name: v.view(1, -1, 1, 1) for name, v in used.items()}

    def normalize(self, inputs: Tensor) -> Tensor:
        """Return (inputs − mean) / std, with the values given to ``set_normalization_used``."""
        mean, std = self._normalization(inputs)
        return (inputs - mean) / std

    def inverse_normalize(self, inputs: Tensor) -> Tensor:
        """Return inputs·std + mean."""
        mean, std = self._normalization(inputs)
        return inputs * std + mean

    def get_mode(self) -> str:
        """Return the attack mode: "default" or "targeted(…)"."""
        return self.attack_mode

    def set_mode_default(self) -> None:
        """Attack untargeted."""
        self.attack_mode, self.targeted = "default", False
        print("Attack mode: default")

    def set_mode_targeted_by_label(self, quiet: bool = False) -> None:
        """Take the labels of each call as targets."""
        self._set_targeted("targeted(label)", None, quiet)

    def set_mode_targeted_by_function(self, target_map_function: TargetMap, quiet: bool = False) -> None:
        """Compute the targets as a function of images in [0, 1] and labels."""
        self._set_targeted("targeted(custom)", target_map_function, quiet)

    def set_mode_targeted_least_likely(self, kth_min: int = 1, quiet: bool = False) -> None:
        """Target the class of the kth_min-th smallest logit, leaving out the label.

        Raises:
            InputError: kth_min below 1.
        """
        kth_min = count("kth_min", kth_min)
        self._set_targeted("targeted(least-likely)", lambda x, y: self._others(x, y)[:, kth_min - 1], quiet)

    def set_mode_targeted_random(self, quiet: bool = False) -> None:
        """Target a random class other than the label."""
        self._set_targeted("targeted(random)", self._random_targets, quiet)

    def set_return_type(self, type: str) -> None:
        """Set the format of results: "float", like the input; or "int", uint8 in [0, 255], not normalized.

        Raises:
            InputError: an unknown type.
        """
        if type not in ("float", "int"):
            raise InputError(f"type: expected float or int, got {type!r}")
        self.return_type = type

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Generate adversarial images.

        Args:
            images: [N, C, H, W], in [0, 1] or normalized as declared.
            labels: [N]; the targets after ``set_mode_targeted_by_label``.

        Returns:
            [N, C, H, W] on the attack's device, in the images' format or uint8.

        Raises:
            InputError: images outside [0, 1], or labels out of range.
        """
        images, labels = images.detach().to(self.device), labels.detach().to(self.device)
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            model: nn.Module = self.model
            if self.normalization_used is not None:
                images = self._undo_rounding(self.inverse_normalize(images))
                model = _Normalized(self)
            targets = self._target_map(images, labels) if self.targeted and self._target_map is not None else labels
            indices = range(self._seen, self._seen + len(images))
            native = self._native(model)
            adversarial = native.generate(images, labels, self.targeted, targets, indices=torch.tensor(indices))
            self._seen += len(images)
        finally:
            for module, training in modes:
                module.training = training
        if self.return_type == "int":
            return self._levels(adversarial, images)
        return adversarial if self.normalization_used is None else self.normalize(adversarial)

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name[0] != "_"}
        hidden = ("model", "attack", "supported_mode", "normalization_used")
        shown = ", ".join(f"{name}={value}" for name, value in settings.items() if name not in hidden)
        return f"{self.attack}({shown}, normalization_used={self.normalization_used is not None})"

    def _set_targeted(self, mode: str, target_map: TargetMap | None, quiet: bool) -> None:
        self.attack_mode, self.targeted, self._target_map = mode, True, target_map
        if not quiet:
            print(f"Attack mode: {mode}")

    def _normalization(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.normalization_used is None:
            raise InputError("normalization: expected mean and std, got none; call set_normalization_used first")
        return self.normalization_used["mean"].to(inputs), self.normalization_used["std"].to(inputs)

    @staticmethod
    def _undo_rounding(images: Tensor) -> Tensor:
        """Clip to [0, 1] if denormalizing left it by rounding error alone."""
        clipped = images.clamp(0, 1)
        return clipped if bool(((clipped - images).abs() <= _ROUNDING).all()) else images

    @torch.no_grad()
    def _others(self, images: Tensor, labels: Tensor) -> Tensor:
        """Classes other than the label [N, K - 1], by increasing logit; images in [0, 1]."""
        self.model.eval()
        self.model.to(self.device)
        logits: Tensor = self.model(images if self.normalization_used is None else self.normalize(images))
        return logits.scatter(1, labels.unsqueeze(1), torch.inf).argsort(dim=1)[:, :-1]

    def _random_targets(self, images: Tensor, labels: Tensor) -> Tensor:
        others = self._others(images, labels).sort(dim=1).values
        generator = torch.Generator().manual_seed((self._seed << 32) + self._seen & (1 << 63) - 1)
        column = torch.randint(others.shape[1], (len(others), 1), generator=generator)
        return others.gather(1, column.to(others.device)).squeeze(1)

    @staticmethod
    def _levels(adversarial: Tensor, images: Tensor) -> Tensor:
        levels = adversarial.double() * 255
        down, up = (levels + _ROUNDING).floor(), (levels - _ROUNDING).ceil()
        return torch.where(adversarial > images, down, up).to(torch.uint8)


class FGSM(Attack):
    """The fast gradient sign method in linf.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        seed: random seed of random targets.

    >>> atk = FGSM(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), eps=8/255)
    >>> atk(torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)).shape
    torch.Size([5, 1, 2, 2])
    """

    def __init__(self, model: nn.Module, eps: float = 8 / 255, *, seed: int = 0) -> None:
        super().__init__("FGSM", model, seed=seed)
        self.eps = eps

    def _native(self, model: nn.Module) -> BatchAttack:
        return fgsm.FGSM(model, self.eps, device=self.device, seed=self._seed)


class PGD(Attack):
    """Projected gradient descent in linf.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps.
        random_start: whether to start from a random point of the ball, rather than from the image.
        seed: random seed of random starts and random targets.

    >>> atk = PGD(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), eps=8/255, alpha=2/255, steps=4)
    >>> images = torch.rand(5, 1, 2, 2)
    >>> bool(((atk(images, torch.zeros(5, dtype=torch.int64)) - images).abs() <= 8/255 + 1e-6).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        random_start: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("PGD", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps
        self.random_start = random_start

    def _native(self, model: nn.Module) -> BatchAttack:
        return pgd.PGD(
            model,
            self.eps,
            device=self.device,
            seed=self._seed,
            steps=self.steps,
            step_size=self.alpha,
            random_start=self.random_start,
        )


class BIM(Attack):
    """The basic iterative method in linf.

    Args:
        model: maps images to logits.
        eps: radius of the ball.
        alpha: step size.
        steps: number of steps; 0 means min(255·eps + 4, 1.25·255·eps), rounded down (Kurakin et al., 2017).
        seed: random seed of random targets.

    >>> BIM(nn.Linear(4, 3), eps=8/255, steps=0).steps
    10
    """

    def __init__(
        self, model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10, *, seed: int = 0
    ) -> None:
        super().__init__("BIM", model, seed=seed)
        self.eps = eps
        self.alpha = alpha
        self.steps = steps or int(min(eps * 255 + 4, 1.25 * eps * 255))

    def _native(self, model: nn.Module) -> BatchAttack:
        return pgd.BIM(model, self.eps, device=self.device, seed=self._seed, steps=self.steps, step_size=self.alpha)


class _Normalized(nn.Module):
    """The model with normalization as its first layer, for images in [0, 1]."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self.model = attack.model
        self._normalize = attack.normalize

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(self._normalize(images))
        return logits
