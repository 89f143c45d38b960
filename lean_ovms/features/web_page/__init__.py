"""The page for browsers: chats, settings, and what the server does."""
