"""One to four replicas on a Ray cluster, as load asks for: serve run --app-dir docs/examples ray_app:app"""

import os

from lean_ovms.ray_serve import application

app = application(
    response_store=os.environ.get("LEAN_OVMS_RESPONSE_STORE", ""),
    deployment={
        "autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 16},
        "ray_actor_options": {"num_cpus": 4},
    },
)
