"""One to four replicas on a Ray cluster, as load asks for: serve run --app-dir docs/examples ray_app:app"""

import os

from ray.serve.config import RequestRouterConfig

from lean_ovms.ray_serve import application

# Requests with the same X-Session-Id go to the same replica, whose prefix cache has the conversation so far.
SESSIONS = RequestRouterConfig(
    request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
)

app = application(
    response_store=os.environ.get("LEAN_OVMS_RESPONSE_STORE", ""),
    deployment={
        "autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 16},
        "ray_actor_options": {"num_cpus": 1},  # set aside for a replica: with fewer in the cluster none ever starts
        "request_router_config": SESSIONS,
    },
)
