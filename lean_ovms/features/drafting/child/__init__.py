"""What drafts tokens: a draft model, a head of the model, and the text itself."""
