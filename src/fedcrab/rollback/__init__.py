"""The rollback decision: how far the poison reaches, and the last model that it has not reached."""

from fedcrab.rollback.decision import PRESETS, Plan, plan

__all__ = ["PRESETS", "Plan", "plan"]
