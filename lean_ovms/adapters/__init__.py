"""Former place of `lean_ovms.asgi` and `lean_ovms.ray_serve`; goes with the next release."""
