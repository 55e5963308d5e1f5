# SPDX-License-Identifier: Apache-2.0
"""Tests the messages between processes of a run: one encoding, with a version."""

from __future__ import annotations

import pytest

import stepwell
from stepwell._distributed import messages
from stepwell._distributed.messages import Decision, Failure, Proposal, StepNews, Value, Vote


def test_messages_come_as_they_were_sent():
    vote = Vote(Proposal("save", 7, items=["state", "ø"], if_exists=1), "digest",
                Failure("no room", "NoSpaceError"), False, "", [(3, "00")])
    assert messages.decode(messages.encode(vote), Vote, 1, "save 7") == Vote(
        Proposal("save", 7, [], ["state", "ø"], 1), "digest",
        Failure("no room", "NoSpaceError", []), False, "", [[3, "00"]])
    decision = Decision(changed=[1], news=StepNews([3], [[4, 0]]), decision_number=9)
    text = messages.pack_text(decision)
    assert messages.unpack_text(text, Decision, 0, "x") == Decision(
        dead=[], changed=[1], news=StepNews([3], [[4, 0]]), decision_number=9)
    assert messages.decode(messages.encode(Value({"a": 1})), Value, 0, "x").value == {"a": 1}


@pytest.mark.parametrize("text", ["1 {}", "{\"error\": null}", "", "x"])
def test_another_version_is_a_clear_error(text: str):
    with pytest.raises(stepwell.PeerError, match="process 3 speaks version .*install") as caught:
        messages.decode(text, Vote, 3, "save 7")
    assert caught.value.processes == (3,)


def test_an_error_is_raised_as_the_class_that_it_was():
    def sent(error: BaseException) -> str:
        return messages.encode(Failure.of(error))

    with pytest.raises(stepwell.StepNotFoundError, match="process 2: no step 7"):
        messages.decode(sent(stepwell.StepNotFoundError("no step 7")), Value, 2, "x")
    with pytest.raises(stepwell.OutcomeUnknownError) as unknown:
        messages.decode(sent(stepwell.OutcomeUnknownError("perhaps")), Value, 2, "x")
    assert unknown.value.processes == (2,)
    with pytest.raises(stepwell.PeerError, match="process 2: MemoryError"):
        messages.decode(sent(MemoryError()), Value, 2, "x")


def test_another_message_than_expected_is_refused():
    with pytest.raises(stepwell.PeerError, match="process 1 does something else than loading"):
        messages.decode(messages.encode(Decision()), Value, 1, "loading")
