"""For all tests: how long one example takes says more about the machine than about the code."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
