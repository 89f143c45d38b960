"""XGrammar: grammars of the paged engine matched by its library."""
