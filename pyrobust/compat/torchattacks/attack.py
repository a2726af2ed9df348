"""The base class of the attacks: modes, normalization, the model's training mode, and saving."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyrobust.checks import Numbers, as_tensor, count, flag, integer, kind, numbers
from pyrobust.errors import InputError, InputTypeError
from pyrobust.runner import modes_restored

from .records import Batches, Record, levels, read_record

TargetMap: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(images, labels) → target labels."""

# Rounding error allowed outside [0, 1] after denormalizing.
_ROUNDING = 1e-4


class Attack:
    """Base class of the attacks, which map images and labels to adversarial images.

    Users' own attacks set ``supported_mode`` and define ``forward``, which can call ``get_logits`` and
    ``get_target_label``.

    Args:
        name: name of the attack.
        model: maps images [N, C, H, W], normalized if ``set_normalization_used`` was called, to logits.
        seed: random seed of random starts and random targets, in [0, 2**64).

    Raises:
        InputTypeError: a model that is not a module.

    >>> class Brighter(Attack):
    ...     def __init__(self, model, eps):
    ...         super().__init__("Brighter", model)
    ...         self.eps = eps
    ...     def forward(self, images, labels=None):
    ...         return (images + self.eps).clamp(0, 1)
    >>> atk = Brighter(nn.Flatten(), eps=0.25)
    >>> atk.set_normalization_used(mean=[0.5], std=[0.25])
    >>> atk(torch.zeros(1, 1, 1, 2))
    tensor([[[[1., 1.]]]])
    """

    def __init__(self, name: str, model: nn.Module, *, seed: int = 0) -> None:
        self.attack = name
        self.set_model(model)
        tensor = next(model.parameters(), None)
        self.device = torch.device("cpu") if tensor is None else tensor.device
        self.supported_mode = ["default"]
        self.attack_mode = "default"
        self.targeted = False
        self.normalization_used: dict[str, Tensor] | None = None
        self.return_type = "float"
        self._target_map: TargetMap | None = None
        self._modes = (False, False, False)  # whether in training mode: the model, its batch norms, its dropouts
        self._unit_range = False  # whether get_logits is given images in [0, 1]
        self._seed = integer("seed", seed, 0, (1 << 64) - 1)
        self._seen = 0

    def forward(self, images: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """Generate adversarial images; subclasses define this method.

        Args:
            images: [N, C, H, W], in [0, 1] even if the model takes normalized images.
            labels: [N]; after ``set_mode_targeted_by_label``, these are the targets.
            *args: further positional arguments of the call.
            **kwargs: further keyword arguments of the call.

        Returns:
            [N, C, H, W] in [0, 1].

        Raises:
            NotImplementedError: a class without a ``forward`` of its own.
        """
        raise NotImplementedError(f"{type(self).__name__}: expected a subclass that defines forward")

    def set_model(self, model: nn.Module) -> None:
        """Attack another model from now on.

        Raises:
            InputTypeError: a model that is not a module.
        """
        if not isinstance(model, nn.Module):
            raise InputTypeError("model", "a torch.nn.Module", kind(model))
        self.model = model
        self.model_name = type(model).__name__

    def set_device(self, device: torch.device | str) -> None:
        """Run on this device from now on; the next call moves the model, except in users' own attacks."""
        self.device = torch.device(device)

    def get_logits(self, inputs: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """Run the model.

        Args:
            inputs: [N, C, H, W]. Inside ``forward``, pass images in [0, 1]; elsewhere, pass images in the format that
                the model takes.
            labels: not used.
            *args: not used.
            **kwargs: not used.

        Returns:
            Logits [N, K].
        """
        normalize = self._unit_range and self.normalization_used is not None
        logits: Tensor = self.model(self.normalize(inputs) if normalize else inputs)
        return logits

    def set_normalization_used(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        """Declare that images are normalized to (· − mean[c]) / std[c]; eps and alpha stay in the units of [0, 1].

        Args:
            mean: one number for each channel.
            std: one positive number for each channel.

        Raises:
            InputError: std does not hold one positive number for each mean.
            InputTypeError: mean or std does not hold numbers.
        """
        used = {name: torch.tensor(numbers(name, v), dtype=torch.float32) for name, v in (("mean", mean), ("std", std))}
        if used["mean"].dim() != 1 or used["mean"].shape != used["std"].shape or not bool((used["std"] > 0).all()):
            raise InputError("std", f"a positive number for each channel of mean, {mean}", std)
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
        """Make the attack untargeted from now on."""
        self.attack_mode, self.targeted = "default", False
        print("Attack mode: default")

    def set_mode_targeted_by_label(self, quiet: bool = False) -> None:
        """Take the labels of each call as targets."""
        self._set_targeted("targeted(label)", None, quiet)

    def set_mode_targeted_by_function(self, target_map_function: TargetMap, quiet: bool = False) -> None:
        """Compute the targets with a function.

        Args:
            target_map_function: (images in [0, 1], labels) → targets [N].
            quiet: if False, the mode is printed.

        Raises:
            InputError: an attack without a targeted mode.
        """
        self._set_targeted("targeted(custom)", target_map_function, quiet)

    def set_mode_targeted_least_likely(self, kth_min: int = 1, quiet: bool = False) -> None:
        """Target the class with the kth_min-th smallest logit among all classes but the label.

        Args:
            kth_min: rank, at least 1.
            quiet: if False, the mode is printed.

        Raises:
            InputError: kth_min below 1, or an attack without a targeted mode.
        """
        self._kth_min = count("kth_min", kth_min)
        self._set_targeted("targeted(least-likely)", self.get_least_likely_label, quiet)

    def set_mode_targeted_random(self, quiet: bool = False) -> None:
        """Target a random class other than the label."""
        self._set_targeted("targeted(random)", self.get_random_target_label, quiet)

    def get_target_label(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return targets [N] according to the mode.

        Args:
            inputs: images, in the format of ``get_logits``.
            labels: [N]; default: the predictions.
        """
        if labels is None:
            labels = self._predicted(inputs)
        return labels if self._target_map is None else self._target_map(inputs, labels)

    def get_least_likely_label(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the class with the kth_min-th smallest logit among all classes but the label, [N].

        Args:
            inputs: images, in the format of ``get_logits``.
            labels: [N]; default: the predictions.

        Raises:
            InputError: a kth_min above the number of other classes.
        """
        others = self._others(inputs, labels)
        if self._kth_min > others.shape[1]:
            raise InputError("kth_min", f"at most {others.shape[1]}, the other classes", self._kth_min)
        return others[:, self._kth_min - 1]

    def get_random_target_label(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Draw a random class other than the label, [N].

        Args:
            inputs: images, in the format of ``get_logits``.
            labels: [N]; default: the predictions.
        """
        others = self._others(inputs, labels).sort(dim=1).values
        column = torch.randint(others.shape[1], (len(others), 1), generator=self._generator())
        return others.gather(1, column.to(others.device)).squeeze(1)

    def set_model_training_mode(
        self, model_training: bool = False, batchnorm_training: bool = False, dropout_training: bool = False
    ) -> None:
        """Set the model's mode during attacks; afterwards every module returns to its previous mode.

        Args:
            model_training: whether the model, except batch norms and dropouts, is in training mode.
            batchnorm_training: whether batch norms are in training mode, too; used only with model_training.
            dropout_training: whether dropouts are in training mode, too; used only with model_training.

        Raises:
            InputTypeError: a value that is not True or False.
        """
        self._modes = (
            flag("model_training", model_training),
            flag("batchnorm_training", batchnorm_training),
            flag("dropout_training", dropout_training),
        )

    def set_return_type(self, type: str) -> None:
        """Set the format of results: "float" (like the input) or "int" (uint8 in [0, 255], not normalized).

        Raises:
            InputError: an unknown type.
        """
        self.return_type = _checked_type("type", type)

    def get_output_with_eval_nograd(self, inputs: Tensor) -> Tensor:
        """Return logits in evaluation mode, without gradients; see ``get_logits`` for the inputs' format."""
        with modes_restored(self.model), torch.no_grad():
            self.model.to(self.device).eval()
            return self.get_logits(inputs.to(self.device))

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
        """Attack all batches of a loader and save the adversarial images, in torchattacks' file format.

        The file is written when the last batch is done; if a batch fails, the batches before it are saved.

        Args:
            data_loader: yields (images, labels).
            save_path: file to write; None for no file.
            verbose: whether to print progress.
            return_verbose: whether to return (robust accuracy in percent, mean l2 distance of the fooled images,
                seconds of the last batch).
            save_predictions: whether to save the predicted classes.
            save_clean_inputs: whether to save the images.
            save_type: "float" for floats in [0, 1], or "int" for uint8.

        Raises:
            InputError: an unknown save_type, or a loader without batches.
            StoreError: a file that cannot be written.
        """
        record = Record(self, _checked_type("save_type", save_type), verbose)
        total = len(data_loader)
        try:
            for done, (images, labels) in enumerate(data_loader, 1):
                record.add(images, labels, done / total)
        finally:
            if save_path is not None and record.labels:
                record.write(save_path, predictions=save_predictions, clean_inputs=save_clean_inputs)
        if not record.labels:
            raise InputError("data_loader", "at least one batch", "none")
        if verbose:
            print()
        return record.summary() if return_verbose else None

    @staticmethod
    def load(
        load_path: str | os.PathLike[str],
        batch_size: int = 128,
        shuffle: bool = False,
        normalize: dict[str, Sequence[float]] | None = None,
        load_predictions: bool = False,
        load_clean_inputs: bool = False,
    ) -> DataLoader[tuple[Tensor, ...]]:
        """Load a file saved by ``save`` or torchattacks as batches (images, labels[, predictions][, clean images]).

        Args:
            load_path: the file.
            batch_size: images per batch.
            shuffle: whether to shuffle the images.
            normalize: mapping with the channels' "mean" and "std", to return normalized images.
            load_predictions: whether batches have the predicted classes.
            load_clean_inputs: whether batches have the clean images.

        Raises:
            FileFormatError: a file that is missing or damaged, or lacks the requested parts.
            InputError: a batch_size below 1, or a "std" that does not hold one positive number for each "mean".
        """
        names = ["adv_inputs", "labels", *["preds"] * load_predictions, *["clean_inputs"] * load_clean_inputs]
        record = read_record(load_path, names)
        if normalize is not None:
            scale = Attack("load", nn.Identity())
            scale.set_normalization_used(normalize["mean"], normalize["std"])
            record |= {name: scale.normalize(record[name]) for name in names if name.endswith("inputs")}
        print(f"Order of the loaded data: {', '.join(names)}")
        dataset = TensorDataset(*(record[name] for name in names))
        return DataLoader(dataset, batch_size=count("batch_size", batch_size), shuffle=shuffle)

    @staticmethod
    def to_type(inputs: Tensor, type: str) -> Tensor:
        """Convert images: "int" converts [0, 1] to uint8, rounded down; "float" converts uint8 to float32 in [0, 1]."""
        if _checked_type("type", type) == "int":
            return (inputs * 255).to(torch.uint8) if inputs.is_floating_point() else inputs
        return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs

    def __call__(self, inputs: Numbers, labels: Numbers | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """Generate adversarial images.

        Args:
            inputs: images [N, C, H, W], in [0, 1] or normalized as declared.
            labels: [N]; after ``set_mode_targeted_by_label``, these are the targets.
            *args: passed to ``forward``.
            **kwargs: passed to ``forward``.

        Returns:
            [N, C, H, W] on the attack's device: uint8 after ``set_return_type("int")``, otherwise in the format of
            ``inputs``.

        Raises:
            InputError: images outside [0, 1], or labels missing or out of range. GN, VANILA, a MultiAttack of these and
                users' own attacks check only what their ``forward`` checks.
            InputTypeError: images or labels that are not numbers.
        """
        images = _tensor("images", inputs).to(self.device)
        classes = None if labels is None else _tensor("labels", labels).to(self.device)
        if self.normalization_used is not None:
            images = self._undo_rounding(self.inverse_normalize(images))
        adversarial = self._generate(images, classes, *args, **kwargs)
        if self.return_type == "int":
            return levels(adversarial, images)
        return adversarial if self.normalization_used is None else self.normalize(adversarial)

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self).items() if name[0] != "_"}
        hidden = ("model", "attack", "supported_mode", "normalization_used")
        shown = ", ".join(f"{name}={value}" for name, value in settings.items() if name not in hidden)
        return f"{self.attack}({shown}, normalization_used={self.normalization_used is not None})"

    def _progress_line(self, share: float, accuracy: float, distance: float, seconds: float) -> str:
        """Return the line that ``save`` prints after a batch."""
        return (
            f"- Save progress: {100 * share:.2f} % / Robust accuracy: {accuracy:.2f} % / L2: {distance:.5f} "
            f"({seconds:.3f} s for the last batch)"
        )

    def _generate(self, images: Tensor, labels: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
        """Call ``forward`` for images in [0, 1], with the model in the mode set for attacks."""
        before, self._unit_range = self._unit_range, True
        try:
            with modes_restored(self.model):
                self._set_modes()
                return self.forward(images, labels, *args, **kwargs)
        finally:
            self._unit_range = before

    def _set_modes(self) -> None:
        """Put the model into the mode that is set for attacks."""
        training, batch_norm, dropout = self._modes
        self.model.train(training)
        for module in self.model.modules() if training else ():
            name = type(module).__name__
            if ("BatchNorm" in name and not batch_norm) or ("Dropout" in name and not dropout):
                module.eval()

    def _set_targeted(self, mode: str, target_map: TargetMap | None, quiet: bool) -> None:
        if "targeted" not in self.supported_mode:
            raise InputError("mode", f"default, the only mode of {self.attack}", mode)
        self.attack_mode, self.targeted, self._target_map = mode, True, target_map
        if not quiet:
            print(f"Attack mode: {mode}")

    def _normalization(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.normalization_used is None:
            raise InputError("normalization", "mean and std", "none", "call set_normalization_used first")
        return self.normalization_used["mean"].to(inputs), self.normalization_used["std"].to(inputs)

    def _undo_rounding(self, images: Tensor) -> Tensor:
        """Clip to [0, 1] if denormalized images lie outside by no more than rounding errors."""
        clipped = images.clamp(0, 1)
        return clipped if bool(((clipped - images).abs() <= _ROUNDING).all()) else images

    def _predicted(self, inputs: Tensor) -> Tensor:
        return self.get_output_with_eval_nograd(inputs).argmax(1)

    def _others(self, inputs: Tensor, labels: Tensor | None) -> Tensor:
        """Return the classes other than the label (default: the prediction) by increasing logit, [N, K - 1]."""
        logits = self.get_output_with_eval_nograd(inputs)
        labels = logits.argmax(1) if labels is None else labels
        return logits.scatter(1, labels.unsqueeze(1), torch.inf).argsort(dim=1)[:, :-1]

    def _generator(self, stream: int = 0) -> torch.Generator:
        """Return a generator for the current call; it depends on the seed and the number of images attacked before."""
        state = np.random.SeedSequence([self._seed, self._seen, stream]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))


def _tensor(name: str, value: Numbers) -> Tensor:
    tensor = as_tensor(value)
    if tensor is None:
        raise InputTypeError(name, "a tensor, an array or a list", kind(value))
    return tensor.detach()


def _checked_type(name: str, value: str) -> str:
    if value not in ("float", "int"):
        raise InputError(name, "float or int", repr(value))
    return value
