"""The tables of benchmarks/simulator.py."""

from __future__ import annotations

from statistics import median, quantiles

from entries import Entry

Rates = dict[Entry, list[float]]  # of every turn


def over(ours: list[float], theirs: list[float]) -> list[float]:
    """Return the quartiles of fedcrab's rate divided by another's, turn by turn."""
    return quantiles(
        [mine / other for mine, other in zip(ours, theirs, strict=True)], n=4, method="inclusive"
    )


def show(model: str, rates: Rates, core_rates: Rates, first: dict[Entry, float]) -> None:
    """Print each median rate, fedcrab's ratio per turn, both per core second, and the first round."""
    ours = {entry.cores: entry for entry in rates if entry.name == "fedcrab"}
    print(
        f"\n{model:<12}{'cores':>6}{'setting':>13}{'samples/s':>12}{'fedcrab is (quartiles)':>26}"
        f"{'/core second':>14}{'fedcrab is (quartiles)':>26}{'first, s':>10}"
    )
    for entry in sorted(rates, key=lambda each: (each.cores, -median(rates[each]))):
        mine = ours.get(entry.cores, entry)
        wall, core = (over(found[mine], found[entry]) for found in (rates, core_rates))
        print(
            f"{entry.name:<12}{entry.cores:>6}{entry.setting:>13}{median(rates[entry]):>12,.0f}{told(wall):>26}"
            f"{median(core_rates[entry]):>14,.0f}{told(core):>26}{first[entry]:>10.1f}"
        )
    if {1, 2} <= ours.keys():
        one, two = rates[ours[1]], rates[ours[2]]
        print(f"fedcrab's second core: {told(over(two, one))}; {len(one)} turns")


def told(quartiles: list[float]) -> str:
    """The median of ratios, and the quartiles."""
    low, middle, high = quartiles
    return f"{middle:.2f} x ({low:.2f} to {high:.2f})"


def show_best(rates: Rates, core_rates: Rates) -> None:
    """Print each program at its best setting, and the ratio of fedcrab at its own best."""
    print(f"\n{'at its best':<12}{'wall':>23}{'fedcrab is (quartiles)':>26}", end="")
    print(f"{'per core second':>23}{'fedcrab is (quartiles)':>26}")
    for name in dict.fromkeys(entry.name for entry in rates):
        line = f"{name:<12}"
        for found in (rates, core_rates):
            mine, other = best_of("fedcrab", found), best_of(name, found)
            setting = f"{other.cores} cores, {other.setting}"
            line += f"{setting:>23}{told(over(found[mine], found[other])):>26}"
        print(line)


def best_of(name: str, found: Rates) -> Entry:
    """Return the setting with the best median."""
    return max((entry for entry in found if entry.name == name), key=lambda entry: median(found[entry]))
