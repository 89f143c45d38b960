"""Draft tokens: of a draft model, of a head of the model, and of n-grams that occurred before."""
