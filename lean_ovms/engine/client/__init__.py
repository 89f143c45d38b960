"""The front end's side of an engine child: start, submit, replies, restart."""
