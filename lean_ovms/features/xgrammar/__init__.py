"""XGrammar: constrains the paged engine's output with the library of that name."""
