"""Makes the models of the tests: tiny ones with random or trained weights, in all forms that the server reads."""
