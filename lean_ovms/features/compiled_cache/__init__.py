"""Networks of language models that are kept in the form in which they are compiled."""
