"""What rules and dashboards are made of: a study's measured facts as PromQL over the engine's own counters. Pure.

Accepted length counts steps without a draft as a study's does: steps = tokens - answers begun - accepted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from speclift.core.engine_facts import CounterNames
from speclift.core.judged import StudyBreakEvens, knots_of
from speclift.core.quantities import printable
from speclift.core.units import Seconds

# Names of recording rules that hide how engines differ.
UNDER_WAY = "speclift:requests_under_way"
TOKENS = "speclift:window_tokens"
STEPS = "speclift:window_steps"
ACCEPTED_LENGTH = "speclift:accepted_length"
ACCEPTANCE_RATE = "speclift:acceptance_rate"
BREAK_EVEN = "speclift:break_even_accepted_length"
PAYS = "speclift:pays"
TOKENS_PER_SECOND = "speclift:tokens_per_second"
# Of every series: a server is an instance of a job.
SERVER = "job, instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    names: CounterNames
    evens: StudyBreakEvens
    # As requests call it, and as series say it where they do.
    model: str
    study: str
    # Fewer tokens in a window than this say nothing.
    tokens_min: float
    window_s: Seconds
    # How long something must hold before it is an alert.
    hold_s: Seconds
    # How far back a server must have drafted to be one that should.
    memory_s: Seconds

    @property
    def matcher(self) -> str:
        """Other models break even elsewhere."""
        return f'{{model_name="{promql_text(self.model)}"}}' if self.names.has_model and self.model else ""

    @property
    def window(self) -> str:
        return prometheus_duration(self.window_s)

    def increase(self, name: str) -> str:
        return self.increase_over(name, self.window_s)

    def increase_over(self, name: str, seconds: Seconds) -> str:
        return f"sum by ({SERVER}) (increase({name}{self.matcher}[{prometheus_duration(seconds)}]))"

    def average(self, name: str) -> str:
        return f"sum by ({SERVER}) (avg_over_time({name}{self.matcher}[{self.window}]))"


def promql_text(text: str) -> str:
    """Inside double quotes; label values of engines are one line."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def prometheus_duration(seconds: Seconds) -> str:
    """Whole milliseconds, in the largest unit that says them exactly."""
    milliseconds = round(seconds * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def number_text(value: float) -> str:
    """Nine digits: no two measured values differ by less."""
    return f"{value:.9g}"


def tokens_query(facts: Monitoring) -> str:
    """Of answers, less the first token of each where the engine tells how many there were."""
    names = facts.names
    if names.requests is None:
        return facts.increase(names.tokens)
    return f"{facts.increase(names.tokens)} - {facts.increase(names.requests)}"


def break_even_query(facts: Monitoring) -> str:
    """Straight lines between the measured loads, level outside: the same as StudyBreakEvens.at_running."""
    knots = knots_of(facts.evens.loads)
    terms = [f"0 * {UNDER_WAY} + {number_text(knots[0][1])}"]
    for (left, low), (right, high) in pairwise(knots):
        slope = (high - low) / (right - left)
        reach = number_text(right - left)
        terms.append(f"{number_text(slope)} * clamp({UNDER_WAY} - {number_text(left)}, 0, {reach})")
    return " + ".join(terms)


def of_study(facts: Monitoring) -> str:
    """For readers: which study, arm, engine and model all of this holds for."""
    evens = facts.evens
    return (
        f"study {printable(facts.study)}, arm {printable(evens.arm.name)}, {printable(evens.engine_version)}, "
        f"model {printable(facts.model) or 'unknown'}"
    )
