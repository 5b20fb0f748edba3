"""Random trainings, and the naive version of everything that fedcrab decides about them."""
