"""The Responses API's parts: a request (ask, items), its answer (body, output, events), keeping it (store, runs)."""
