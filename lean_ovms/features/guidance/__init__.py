"""The grammar library of the paged engine, llguidance."""
