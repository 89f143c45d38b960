"""Words to numbers and back: templates, detokenizing, stop strings. No sockets, no engine."""
