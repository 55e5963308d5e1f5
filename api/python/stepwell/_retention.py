# SPDX-License-Identifier: Apache-2.0
"""The results of `Store.retention`."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _stepwell
from .policy import Policy, Rule

Fields = dict[str, Any]  # of the engine's report; JSON, which goes through messages


def fields_of(report: _stepwell.RetentionReport) -> Fields:
    return {"rules": [{**vars(Rule.of(rule)), "kind": rule.kind.name} for rule in report.rules],
            "steps": [{name: getattr(step, name) for name in StepRetention._fields}
                      for step in report.steps], "warnings": report.warnings}


class StepRetention(NamedTuple):
    """One step: what keeps it once the next save is committed.

    pinned: whether it has a pin, which keeps it whatever the policy says.
    kept_by: the parts of the policy that keep it.
    goes_next: whether the next save deletes it.
    newest_untainted: whether it stays as the newest step that is not tainted, below tainted ones.
    """

    step: int
    pinned: bool
    kept_by: tuple[Policy, ...]
    goes_next: bool
    newest_untainted: bool

    def __str__(self) -> str:
        if self.goes_next:
            return f"step {self.step}: goes with the next save"
        reasons = (["its pin"] if self.pinned else []) + [repr(part) for part in self.kept_by]
        if self.newest_untainted:
            reasons.append("being the newest that is not tainted")
        return f"step {self.step}: kept by {', '.join(reasons) or 'no policy, as every step'}"


class RetentionReport(NamedTuple):
    """Which part of the policy keeps which step; printing it gives a line a step.

    policy: that of this store; of one open for reading without `keep`, that of the last program
        that saved. None: every step is kept.
    steps: ascending.
    warnings: steps beyond what the policy keeps now, all of which the next save deletes, metrics
        that no step has, and a `LastVerified` while no step is verified.
    """

    policy: Policy | None
    steps: list[StepRetention]
    warnings: list[str]

    @property
    def goes_next(self) -> list[int]:
        """Numbers of the steps that the next save deletes, as far as it can be known: it is taken
        to be as large as the newest step, and to have no metrics."""
        return [step.step for step in self.steps if step.goes_next]

    def __str__(self) -> str:
        lines = ["every step is kept" if self.policy is None else f"keep={self.policy!r}"]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines + [str(step) for step in self.steps])

    @classmethod
    def of(cls, fields: Fields) -> RetentionReport:
        parts = [Policy._of_rule(Rule(**{**rule, "kind": _stepwell.KeepKind[rule["kind"]]}))
                 for rule in fields["rules"]]
        return cls(Policy(*parts) if parts else None,
                   [StepRetention(**{**step, "kept_by": tuple(parts[i] for i in step["kept_by"])})
                    for step in fields["steps"]], fields["warnings"])
