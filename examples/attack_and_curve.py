"""Attack a model, and draw its robustness curve.

Prints clean accuracy, robust accuracy and success rate of PGD and AutoAttack at one epsilon; then robust accuracy at
five epsilons, under PGD with an exact 95 % interval, and from one run of FMN, a minimum-norm attack, which finds the
distance of the nearest adversarial example of each image and so the accuracy at every epsilon.
"""

from pyrobust import FMN, PGD, AutoAttack, robustness_curve
from pyrobust.zoo import load_digits, load_model

EPSILON = 0.15  # l-infinity

digits = load_digits()
x, y = digits.x[:100], digits.y[:100]
model = load_model("zoo:digits-ibp-0.10")

print("attack      clean  robust  success")
pgd = PGD(model, EPSILON, steps=20, seed=0)
# AutoAttack is the attack to report, and slow where it fails. It need not try images that bounds prove robust.
strongest = AutoAttack(model, EPSILON, seed=0, certify_first=True)
for attack in (pgd, strongest):
    rates = attack.evaluate(x, y, attack(x, y))
    clean, robust, success = (rates[key] for key in ("clean_accuracy", "robust_accuracy", "attack_success_rate"))
    print(f"{type(attack).__name__:10}  {clean:5.0%}  {robust:6.0%}  {success:7.0%}")

# Each point is an upper bound of robustness: a stronger attack can only lower it.
epsilons = [0.0, 0.05, 0.1, 0.15, 0.2]
curve = robustness_curve(PGD, model, x, y, epsilons, steps=20, seed=0)
distance = FMN(model, norm="linf", steps=50, seed=0).minimum(x, y).distance  # 0: misclassified, inf: none found

print("epsilon  PGD  interval     FMN")
for epsilon, pgd_robust, lower, upper in zip(epsilons, curve.robust_accuracy, curve.lower, curve.upper, strict=True):
    fmn_robust = (distance > epsilon).double().mean()
    print(f"{epsilon:7.2f}  {pgd_robust:.0%}  {f'{lower:.0%} to {upper:.0%}':11}  {fmn_robust:.0%}")
