"""The engine child and its client in the front end. Only `client` and `protocol` belong to the front end."""
