"""WebSockets for every transport: the handler's side of a connection, and the frames of RFC 6455 for http11."""
