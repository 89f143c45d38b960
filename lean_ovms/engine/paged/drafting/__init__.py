"""Draft tokens: of a draft model, and of n-grams that occurred before."""
