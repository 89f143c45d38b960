"""Ray's request router, which sends a prompt to the replica that has computed most of it, unless that one is busy.

Ray's own prefix router looks for a prompt in the arguments of calls between deployments. For an HTTP request the
argument is only the head, so this one asks the middleware in the same process (proxy.py), which has read the body.

Ray sends the code of this module by value to the processes that need it. If they lack this package, requests are
distributed by load. A proxy knows what it has sent itself, and what the replicas report every few seconds, which
includes the requests of other proxies.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ray.serve.request_router import RequestRouter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica


class PrefixAffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Chooses replicas by prefix and load, and by the session for requests with a session header."""

    queue_len_response_deadline_s = 2.0
    """Seconds within which a replica must report its number of requests. With Ray's default of 0.1 a fully loaded
    machine would seem gone, and its conversations would go elsewhere."""
    max_queue_len_response_deadline_s = 10.0
    """The greatest value of that time, which grows with each attempt."""
    _requests: dict[str, Any]
    _known: Any
    _reports: dict[ReplicaID, frozenset[bytes]]

    def initialize_state(self, most_ahead: float | None = None) -> None:
        """Sets up the router with the deployment's `request_router_kwargs`; called by Ray.

        Args:
            most_ahead: The number of requests by which the replica that knows a prompt may exceed the least loaded one;
                None for the same as among the replicas of one server.
        """
        self._reports = {}
        try:
            from ..replicas.prefix_router import MOST_AHEAD, PrefixRouter
            from .prompts import IN_FLIGHT
        except ImportError:
            logging.getLogger("ray.serve").warning(
                "lean_ovms is not installed here, so requests are distributed by load alone"
            )
            self._requests, self._known = {}, None
        else:
            self._requests, self._known = IN_FLIGHT, PrefixRouter(MOST_AHEAD if most_ahead is None else most_ahead)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the replicas in the order in which Ray should ask them, best first; inner lists are of equal ones."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        # Otherwise Ray asks again without a pause while all replicas are full.
        pending_request.routing_context.should_backoff = True
        replicas = {one.replica_id: one for one in candidate_replicas}
        request = self._requests.get(pending_request.metadata.request_id)
        if session := pending_request.metadata.session_id:
            return [[replicas[one]] for one in sorted(replicas, key=lambda one: place(session, one.unique_id))]
        chosen = self._chosen(request, replicas)
        if request is not None:
            request.replica = chosen  # counted from now on, for requests that are routed at the same time
        others = [replica for one, replica in replicas.items() if one != chosen]
        return [[replicas[chosen]], others]

    def _chosen(self, request: Any, replicas: dict[ReplicaID, Any]) -> ReplicaID:
        """Returns the replica for a request without a session.

        It is the one that made the response to which the request refers, or the one for its prompt, or one of the least
        loaded.
        """
        if request is not None and (home := request.home()) in replicas:
            return home
        loads = self._loads(replicas)
        if request is not None and (prompt := request.prompt()):
            return self._known.choose(prompt, loads, self._told(request))
        least = min(loads.values())
        return random.choice([one for one, load in loads.items() if load == least])

    def _told(self, request: Any) -> Callable[[ReplicaID], int]:
        """Returns a function that returns how many blocks of a request's prompt a replica has reported."""
        from .prompts import MARKED_BLOCKS

        marks = request.marks() if any(self._reports.values()) else []
        return lambda one: MARKED_BLOCKS * sum(1 for _ in takewhile(self._reports.get(one, ()).__contains__, marks))

    def _loads(self, replicas: dict[ReplicaID, Any]) -> dict[ReplicaID, int]:
        """Returns the number of requests of each replica.

        It is the number that the replica reported last, which includes other proxies, or that sent by this proxy if it
        is larger.
        """
        sent = Counter(request.replica for request in list(self._requests.values()))
        return {one: max(sent[one], self.replica_queue_len_cache.get(one) or 0) for one in replicas}

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Records that a replica has taken a request; called by Ray."""
        request = self._requests.get(pending_request.metadata.request_id)
        if request is not None and self._known is not None:
            request.replica = replica_id
            self._known.record(request.prompt(), replica_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets a replica that has died; called by Ray."""
        super().on_replica_actor_died(replica_id)
        self._forget({replica_id})

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Updates the set of replicas; called by Ray."""
        before = set(self.curr_replicas)
        super().update_replicas(replicas)
        self._forget(before - set(self.curr_replicas))
        if self._known is not None:
            from .prompts import reported

            self._reports = {one.replica_id: reported(one.routing_stats) for one in replicas}

    def _forget(self, gone: set[ReplicaID]) -> None:
        """Forgets the prompts of replicas that have ended."""
        for replica_id in gone if self._known is not None else ():
            self._known.remove(replica_id)


def place(session: str, replica: str) -> bytes:
    """Returns a replica's rank for a session, in any process, which does not depend on the other replicas."""
    return blake2b(f"{session}\0{replica}".encode(), digest_size=8).digest()
