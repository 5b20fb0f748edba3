"""What a model is worth, what is left of an attack in it, what a recovery cost."""

from fedcrab.evaluate.accuracy import accuracy
from fedcrab.evaluate.backdoor import AttackSuccess, attack_success
from fedcrab.evaluate.cost import Cost, MeteredFleet, peak_buffered
from fedcrab.evaluate.membership import AttackModel, Membership, fit_attack_model, membership

__all__ = [
    "AttackModel",
    "AttackSuccess",
    "Cost",
    "Membership",
    "MeteredFleet",
    "accuracy",
    "attack_success",
    "fit_attack_model",
    "membership",
    "peak_buffered",
]
