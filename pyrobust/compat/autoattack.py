"""Drop-in replacement for the reference implementation of AutoAttack (Croce and Hein, 2020).

Change ``from autoattack import AutoAttack`` to ``from pyrobust.compat.autoattack import AutoAttack``. Differences:

- an attack stops for an example as soon as the model misclassifies it, so the same attacks take fewer forward passes;
  when run alone, "fab" and "fab-t" search to the end, over all their classes, and return the nearest adversarial
  example;
- random numbers depend only on the seed and an example's position: no seed means seed 0, results do not depend on
  ``bs``, and torch's generators are not touched;
- an example counts as broken only if it is also misclassified in a batch of one, and adversarial examples lie exactly
  inside the ball and [0, 1];
- images outside [0, 1] are an error, but the reference clips them;
- the model runs in evaluation mode, then returns to its own mode; it is moved to ``device`` permanently;
- with fewer than four classes, the attacks on DLR losses are replaced as in ``pyrobust.attacks.AutoAttack``; no attack
  uses more target classes than there are;
- the default device is that of the model, or, for a callable, the GPU if there is one;
- the state is written after each attack, in a different format.

The printed lines are those of the reference, for programs that parse these lines. Most of them are also written to
``log_path``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.attacks.autoattack import AutoAttack as NativeAutoAttack
from pyrobust.attacks.autoattack import Flag
from pyrobust.attacks.autoattack_versions import VERSIONS, checked_names
from pyrobust.attacks.engine.batches import BatchAttack
from pyrobust.attacks.engine.queries import Queries
from pyrobust.errors import InputError
from pyrobust.runner import Classifier, Runner, evaluation_mode
from pyrobust.zoo import model_hash

from .autoattack_settings import (
    NORMS,
    APGDSettings,
    AttackSettings,
    FABSettings,
    SquareSettings,
    TargetedAPGDSettings,
)
from .autoattack_state import State, hash_of

# The lines of flags begin like the reference's, since programs look for that; {} is the flag's value.
_FLAGS = {
    "randomized": 'it seems to be a randomized defense! Please use version="rand".',
    "probabilities": "it seems that the output is a probability distribution, please be sure that the logits are used!",
    "dynamic": "it seems to be a dynamic defense! Gradients are computed in its forward pass.",
    "zero-gradient": "there are {} points with zero gradient! Gradient-based attacks cannot move them.",
    "square": "Square Attack has decreased the robust accuracy of {:.2%}. Gradients may be masked.",
    "classes": "with only {} classes it is not possible to use the DLR loss! Its attacks are replaced or skipped.",
}


class AutoAttack:
    """AutoAttack with the methods of the reference implementation.

    Args:
        model: maps a batch [N, ...] in [0, 1] to logits [N, K].
        norm: "Linf", "L2" or "L1".
        eps: radius of the ball.
        seed: random seed; None means 0.
        verbose: whether to print progress and results. Warnings are always printed.
        attacks_to_run: with version="custom", names among "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square".
        version: "standard", "plus", "rand" or "custom".
        is_tf_model: not supported.
        device: where to run; a module is moved there. Default: where the module is, or, for a callable, the GPU if
            there is one.
        log_path: file to which the lines of evaluations and the warnings are appended. The lines of ``set_version`` and
            ``clean_accuracy``, and the first line of ``run_standard_evaluation_individual``, are only printed.

    Attributes:
        epsilon: the radius eps; assigning to it sets every attack's eps.
        apgd: settings of "apgd-ce" and "apgd-dlr": n_restarts, n_iter, eot_iter, thr_decr, use_largereps and loss. Like
            the settings of every attack, ``apgd`` also has eps, norm, seed and ``perturb(x, y)``, which runs the attack
            alone; apgd, apgd_targeted and fab also have ``attack_single_run``.
        apgd_targeted: settings of "apgd-t": the settings of ``apgd``, and ``n_target_classes``.
        fab: settings of "fab" and "fab-t": n_restarts, n_iter, alpha_max, eta, beta, n_target_classes and targeted.
        square: settings of "square": n_queries, p_init, n_restarts, loss and rescale_schedule.

    Raises:
        InputError: a value out of range, or a TensorFlow model.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 10))
    >>> adversary = AutoAttack(model, norm="L2", eps=0.5, version="custom", attacks_to_run=["apgd-ce"], device="cpu",
    ...                        verbose=False)
    >>> adversary.apgd.n_restarts = 2
    >>> x, y = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 2])
    >>> adversary.run_standard_evaluation(x, y, bs=2).shape
    torch.Size([3, 1, 2, 2])
    """

    def __init__(
        self,
        model: Classifier,
        norm: str = "Linf",
        eps: float = 0.3,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str] = (),
        version: str = "standard",
        is_tf_model: bool = False,
        device: torch.device | str | None = None,
        log_path: str | os.PathLike[str] | None = None,
    ) -> None:
        if is_tf_model:
            raise InputError(
                "is_tf_model", "False, because only PyTorch models are supported", hint="convert the model"
            )
        if norm not in NORMS:
            raise InputError("norm", f"one of {', '.join(NORMS)}", repr(norm))
        if version not in (*VERSIONS, "custom"):
            raise InputError("version", f"one of {', '.join(VERSIONS)} or custom", repr(version))
        if version in VERSIONS and len(attacks_to_run):
            raise InputError(
                "attacks_to_run", f'none with version="{version}"', hint='use version="custom" to choose attacks'
            )
        self.model = model
        self.norm = norm
        self.seed = seed
        self.verbose = verbose
        self.attacks_to_run = list(attacks_to_run)
        self.version = version
        self.is_tf_model = False
        self.device = device or _place_of(model)
        self.log_path = log_path
        self.apgd = APGDSettings(self, eps, norm, seed=seed, n_restarts=5)
        self.apgd_targeted = TargetedAPGDSettings(self, eps, norm, seed=seed)
        self.fab = FABSettings(self, eps, norm, seed=seed)
        self.square = SquareSettings(self, eps, norm, seed=seed)
        self.epsilon = eps
        if version in VERSIONS:
            self.set_version(version)
        self._native(self.attacks_to_run, 250)  # check the arguments now

    @property
    def epsilon(self) -> float:
        """Radius of the ball."""
        return self._epsilon

    @epsilon.setter
    def epsilon(self, eps: float) -> None:
        self._epsilon = eps
        for settings in (self.apgd, self.apgd_targeted, self.fab, self.square):
            settings.eps = eps

    def set_version(self, version: str = "standard") -> None:
        """Select the attacks and budgets of a version."""
        if version not in VERSIONS:
            raise InputError("version", f"one of {', '.join(VERSIONS)}", repr(version))
        if self.verbose:
            print(f"setting parameters for {version} version")
        self.attacks_to_run = list(VERSIONS[version])
        l1 = self.norm == "L1"
        if version == "rand":
            self.apgd.n_restarts, self.apgd.eot_iter = 1, 20
            return
        self.apgd_targeted.n_restarts = 1
        self.apgd_targeted.n_target_classes = self.fab.n_target_classes = 9
        self.square.n_queries = 5000
        if version == "plus":
            self.apgd.n_restarts = self.fab.n_restarts = 5
            if l1:
                print(f'"plus" version is used with {self.norm} norm: please check')
            return
        self.apgd.n_restarts = 5 if l1 else 1
        self.fab.n_restarts = 1
        if l1:
            self.apgd.use_largereps = self.apgd_targeted.use_largereps = True
            self.apgd_targeted.n_target_classes = 5

    def get_logits(self, x: Tensor) -> Tensor:
        """Run the model on a batch."""
        logits: Tensor = self.model(x)
        return logits

    def get_seed(self) -> int:
        """Return the seed; 0 if none was given."""
        return 0 if self.seed is None else self.seed

    def run_standard_evaluation(
        self,
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int = 250,
        return_labels: bool = False,
        state_path: str | os.PathLike[str] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the attacks in order, each on the examples that are still robust.

        Args:
            x_orig: [N, ...], in [0, 1].
            y_orig: [N], the labels.
            bs: rows per forward pass.
            return_labels: whether to return the model's predictions as well.
            state_path: file that records after each attack which examples are broken. If the file exists, the run is
                resumed with the remaining attacks, and only the adversarial examples that these attacks find are
                returned.

        Returns:
            x_adv [N, ...], equal to x_orig where no adversarial example was found; with return_labels, also the
            predictions [N].

        Raises:
            InputError: values out of range, or a state of another evaluation.
            FileFormatError: a broken state file.
            StoreError: a state file that cannot be written.
        """
        path = None if state_path is None else Path(state_path)
        if not self.attacks_to_run:
            raise InputError("attacks_to_run", "at least one attack", "none", 'name the attacks of version="custom"')
        run = {"norm": self.norm, "eps": self.epsilon, "attacks": list(self.attacks_to_run), "examples": len(x_orig)}
        if path is not None:
            model: Any = self.model
            run |= {
                "data": hash_of(x_orig, y_orig),
                "model": model_hash(model) if isinstance(model, nn.Module) else "",
            }
        state = self._open_state(path, run)
        todo = [name for name in self.attacks_to_run if name not in state.done]
        self._log_if_verbose(f"using {self.version} version including {', '.join(todo)}.")
        if state.done:
            self._log_if_verbose(f"{', '.join(state.done)} was/were already run.")
        rows = torch.arange(len(x_orig)) if state.robust is None else torch.tensor(state.robust).nonzero()[:, 0]
        rate = f"{len(rows) / max(len(x_orig), 1):.2%}"
        if state.clean is not None:
            self._log_if_verbose(f"initial clean accuracy: {state.clean:.2%}")
            self._log_if_verbose(f"robust accuracy at the time of restoring the state: {rate}")
        start = time.perf_counter()

        def after(name: str, robust: Tensor, x_adv: Tensor) -> None:
            nonlocal rate, start
            flags = torch.zeros(len(x_orig), dtype=torch.bool)
            flags[rows[robust]] = True
            unbroken = int(flags.sum()) / len(x_orig)
            rate = f"{unbroken:.2%}"
            if name != "clean":
                seconds = time.perf_counter() - start
                self._log_if_verbose(f"robust accuracy after {name.upper()}: {rate} (total time {seconds:.1f} s)")
                state.done.append(name)
            elif state.clean is None:
                self._log_if_verbose(f"initial accuracy: {rate}")
                state.clean, start = unbroken, time.perf_counter()
            state.robust = flags.tolist()
            if path is not None:
                state.write(path)

        x_adv = x_orig.detach().clone()
        if todo and len(rows):
            native = self._native(todo, bs)
            native.after_attack = after
            on_device = rows.to(x_orig.device)
            x_adv[on_device] = native.generate(x_orig[on_device], y_orig[rows.to(y_orig.device)], indices=rows)
        if len(x_orig):
            difference = (x_adv - x_orig).flatten(1)
            order = {"Linf": float("inf"), "L2": 2, "L1": 1}[self.norm]
            self._log_if_verbose(
                f"max {self.norm} perturbation: {torch.linalg.vector_norm(difference, order, dim=1).max():.5f}, "
                f"nan in tensor: {int(x_adv.isnan().sum())}, max: {x_adv.max():.5f}, min: {x_adv.min():.5f}"
            )
        self._log_if_verbose(f"robust accuracy: {rate}")
        return (x_adv, self.predict(x_adv, bs).to(y_orig)) if return_labels else x_adv

    def _open_state(self, path: Path | None, run: dict[str, Any]) -> State:
        """Read the state of a run, or create it, and report which of the two was done."""
        if path is None:
            return State(run)
        if path.exists():
            state = State.read(path, run)
            self._log_if_verbose(f"Restored state from {path}")
            self._log_if_verbose("Only the adversarial examples of this run are returned, not those found before.")
            return state
        state = State(run)
        state.write(path)
        self._log_if_verbose(f"Created state in {path}")
        return state

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        """Run each attack by itself on all examples.

        Args:
            x_orig: [N, ...], in [0, 1].
            y_orig: [N], the labels.
            bs: rows per forward pass.
            return_labels: whether to return the model's predictions as well.

        Returns:
            A dictionary from the attack's name to the result of ``run_standard_evaluation`` with this attack alone.

        Raises:
            InputError: values out of range.
        """
        attacks, verbose = self.attacks_to_run, self.verbose
        if verbose:
            print(f"using {self.version} version including {', '.join(attacks)}")
        results: dict[str, Tensor | tuple[Tensor, Tensor]] = {}
        try:
            for name in attacks:
                start = time.perf_counter()
                self.attacks_to_run, self.verbose = [name], False
                x_adv, y_adv = self.run_standard_evaluation(x_orig, y_orig, bs, return_labels=True)
                results[name] = (x_adv, y_adv) if return_labels else x_adv
                self.verbose = verbose
                rate, seconds = float((y_adv == y_orig).double().mean()), time.perf_counter() - start
                space = "\t \t" if name == "fab" else "\t"
                self._log_if_verbose(
                    f"robust accuracy by {name.upper()} {space} {rate:.2%} \t (time attack: {seconds:.1f} s)"
                )
        finally:
            self.attacks_to_run, self.verbose = attacks, verbose
        return results

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """Return the share of the examples that the model classifies correctly."""
        rate = float((self.predict(x_orig, bs) == y_orig.cpu()).double().mean())
        if self.verbose:
            print(f"clean accuracy: {rate:.2%}")
        return rate

    def predict(self, x: Tensor, bs: int = 250) -> Tensor:
        """Return the predicted classes of x [N, ...], int64 [N] on the CPU."""
        runner = self._native(self.attacks_to_run, bs).runner
        return Queries(runner).judge.classes(x)

    def perturb(self, name: str, seed: int | None, x: Tensor, y: Tensor) -> Tensor:
        """Run the attack of that name alone, as the method ``perturb`` of the attack's settings does."""
        return self._native([name], max(len(x), 1), seed, quiet=True).generate(x, y)

    def options(self, seed: int | None, bs: int) -> dict[str, Any]:
        """Return the keyword arguments that all attacks share."""
        return {"device": self.device, "seed": 0 if seed is None else seed, "batch_size": bs}

    def _native(
        self, names: Sequence[str], bs: int, seed: int | None = None, *, quiet: bool = False
    ) -> NativeAutoAttack:
        options = self.options(self.get_seed() if seed is None else seed, bs)
        with evaluation_mode(self.model):  # the model keeps its mode, as in the reference
            return self._made(names, options, bs, quiet)

    def _made(self, names: Sequence[str], options: dict[str, Any], bs: int, quiet: bool) -> NativeAutoAttack:
        epsilon, norm = self.epsilon, NORMS[self.norm]
        if quiet:
            native: NativeAutoAttack = _OwnEpsilons(self.model, epsilon, norm, **options)
        else:
            native = _Reporting(self, bs, self.model, epsilon, norm, **options)
        if self.version == "rand":
            native.version = "rand"  # so that a randomized model is not flagged
        settings: dict[str, AttackSettings] = {
            "apgd-ce": self.apgd,
            "apgd-dlr": self.apgd,
            "apgd-t": self.apgd_targeted,
            "fab": self.fab,
            "fab-t": self.fab,
            "square": self.square,
        }
        if names:
            native.attacks = {name: settings[name].native(name, self.model, options) for name in checked_names(names)}
        return native

    def _log_if_verbose(self, line: str) -> None:
        if self.verbose:
            self._log(line)

    def _log(self, line: str) -> None:
        print(line)
        if self.log_path is not None:
            with open(self.log_path, "a") as file:
                file.write(line + "\n")


def _place_of(model: Classifier) -> torch.device | str:
    """Return the device of a module; for a callable, the GPU if there is one."""
    if isinstance(model, nn.Module) and next(chain(model.parameters(), model.buffers()), None) is not None:
        return Runner(model).device
    return "cuda" if torch.cuda.is_available() else "cpu"


class _OwnEpsilons(NativeAutoAttack):
    """AutoAttack whose attacks keep their own epsilons, as in the reference."""

    def _attack_epsilons(self, attack: BatchAttack, examples: int, epsilon: float | Tensor | None) -> Tensor:
        return attack._epsilons(examples, epsilon)


class _Reporting(_OwnEpsilons):
    """AutoAttack that prints the reference's lines: one for each finished batch, and a warning for each flag."""

    def __init__(self, face: AutoAttack, bs: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._face, self._bs = face, bs
        self._batches: dict[tuple[str, int], list[bool]] = {}

    def _flag(self, flag: Flag) -> None:
        line = _FLAGS[flag.name].format(flag.value)
        if flag.name == "classes" and flag.value == 3:
            line = line.replace("DLR", "targeted DLR")
        self._face._log(f"Warning: {line}")

    def _ended(self, name: str, position: int, examples: int, success: bool) -> None:
        batch = position // self._bs
        successes = self._batches.setdefault((name, batch), [])
        successes.append(success)
        size = min(self._bs, examples - batch * self._bs)
        if len(successes) == size:
            count = -(-examples // self._bs)
            self._face._log_if_verbose(
                f"{name} - {batch + 1}/{count} - {sum(successes)} out of {size} successfully perturbed"
            )
