"""Which rounds of a study go to which node, and what of a round is finished there? Pure, but for the study it reads.

A round belongs to the node that began it, because only records of one node form a pair. Where that node is gone, blocks
that it finished on every arm stay as they are, and the others are measured anew, whole, on another node: half a block
pairs with nothing. What was measured of it stays in the study.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from speclift.core.traffic import Request
from speclift.studies.study import Done, Study
from speclift.workload.experiment import Item, Turn


class Progress:
    """What the study holds of each round, by node."""

    def __init__(self, study: Study) -> None:
        self._requests: Mapping[str, Request] = {request.id: request for request in study.plan.requests}
        self._done = study.done_by_node()
        # The latest launch of each round is the one that is gone on with.
        self._homes: dict[int, str] = {}
        self._failed: dict[tuple[int, str], set[str]] = defaultdict(set)
        for launch, _ in study.launches():
            self._homes[launch.round] = launch.node
            failed = self._failed[launch.round, launch.node]
            (failed.add if launch.failure else failed.discard)(launch.arm)

    def home(self, round_index: int) -> str | None:
        return self._homes.get(round_index)

    def known_to(self, node: str, asked: Sequence[Turn]) -> frozenset[Done]:
        """What need not be measured of these turns on this node: what it did itself, and whole blocks of others."""
        blocks: dict[int, list[Turn]] = defaultdict(list)
        for turn in asked:
            blocks[turn.block].append(turn)
        known = set(self._done.get(node, ()))
        for others in self._done.keys() - {node}:
            for block in blocks.values():
                if self._is_whole(block, others):
                    known |= self._places(block)
        return frozenset(known)

    def is_finished(self, asked: Sequence[Turn]) -> bool:
        """On whichever nodes."""
        known = self.known_to(self.home(asked[0].round) or "", asked) if asked else frozenset()
        return self._places(asked) <= known

    def _is_whole(self, block: Sequence[Turn], node: str) -> bool:
        """Arms that failed on the node have no part in it."""
        failed = self._failed.get((block[0].round, node), set())
        standing = [turn for turn in block if turn.arm not in failed]
        return bool(standing) and self._places(standing) <= self._done[node]

    def _places(self, turns: Iterable[Turn]) -> set[Done]:
        return {self._place(turn, item) for turn in turns for item in turn.items}

    def _place(self, turn: Turn, item: Item) -> Done:
        request = self._requests[item.request_id]
        temperature = request.temperature if item.temperature is None else item.temperature
        return Done(turn.arm, turn.round, turn.block, item.request_id, temperature, item.repeat)


def next_round(
    node: str, waiting: Sequence[int], homes: Mapping[int, str | None], working: Collection[str]
) -> int | None:
    """Of the rounds that wait, the first that this node began, else the first whose node is none of those that work;
    None where every one of them waits for another node."""
    own = [index for index in waiting if homes.get(index) == node]
    free = [index for index in waiting if homes.get(index) not in working]
    return next(iter([*own, *free]), None)
