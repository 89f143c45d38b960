"""The page for browsers, which has chats, settings, and an overview of the server."""
