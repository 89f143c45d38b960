"""Two replicas on a Ray cluster: serve run --working-dir docs/examples ray_app:app"""

from lean_ovms.ray_serve import application

app = application(deployment={"num_replicas": 2, "ray_actor_options": {"num_cpus": 4}})
