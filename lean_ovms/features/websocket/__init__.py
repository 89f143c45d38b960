"""WebSockets for every transport: the handler's side of a connection, and RFC 6455's frames for http11."""
