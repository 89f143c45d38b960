"""Words to numbers and back: templates, detokenizing, stop strings, parsers. No sockets, no engine."""
