"""A conversation under way: a user who reads each answer, thinks, and asks the next thing about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.load.decode import fault_and_words
from benchgate.load.exchange import Fault, Response
from benchgate.load.tickets import Ticket, request_wire
from benchgate.plan.model import PlannedRequest
from benchgate.targets.dialect import Target


def turns_of(first: Ticket, others: Iterator[Ticket]) -> tuple[Ticket, ...] | None:
    """The tickets of the conversation that this one begins, the others taken from those that follow it.

    None when it is a request by itself. A plan holds the turns of a conversation one after the other.
    """
    if first.special is None or first.special.turn is None:
        return None
    turns = [first]
    while not _is_last(turns[-1]) and (ticket := next(others, None)) is not None:
        if _session(ticket) != first.special.turn.session:
            raise ValueError(f"request {ticket.number} stands between the turns of another conversation")
        turns.append(ticket)
    return tuple(turns)


def think_s(ticket: Ticket) -> float:
    """How long the user thinks before this turn."""
    turn = _request(ticket).turn
    return 0.0 if turn is None else turn.think_s


class Conversation:
    """What was said so far."""

    def __init__(self, target: Target, turns: Sequence[Ticket]) -> None:
        self._target = target
        self._carries = any(_carries(ticket) for ticket in turns)
        self._earlier: list[str] = []

    def take(self, ticket: Ticket, response: Response) -> Response | None:
        """Note the answer to a turn. When it ended the conversation: what becomes of each turn that is left.

        After a turn that failed, its user has nothing to go on with: the others fail by the same error, so that what
        was planned stays in the denominator. After one that the client broke off on purpose, it is gone.
        """
        request = _request(ticket)
        if request.leave is not None or response.left:
            return Response.unsent(None, left=True)
        fault, words = fault_and_words(response, request.ask, self._target)
        if fault is not None:
            said = f"not sent, because turn {_number(request)} of its conversation failed: {fault.detail}"
            return Response.unsent(Fault(fault.error, said))
        if self._carries:
            self._earlier.append(words.text)
        return None

    def ready(self, ticket: Ticket) -> Ticket:
        """A turn as it is sent: with the model's own earlier answers in it, where it carries them."""
        if not _carries(ticket):
            return ticket
        return ticket._replace(wire=request_wire(self._target, _request(ticket), self._earlier))


def _request(ticket: Ticket) -> PlannedRequest:
    if ticket.special is None:
        raise ValueError(f"request {ticket.number} is no turn of a conversation")
    return ticket.special


def _session(ticket: Ticket) -> int | None:
    turn = _request(ticket).turn
    return None if turn is None else turn.session


def _is_last(ticket: Ticket) -> bool:
    turn = _request(ticket).turn
    return turn is None or turn.last


def _carries(ticket: Ticket) -> bool:
    turn = _request(ticket).turn
    return turn is not None and turn.carries


def _number(request: PlannedRequest) -> int:
    return 1 if request.turn is None else request.turn.turn + 1
