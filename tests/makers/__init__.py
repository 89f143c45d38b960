"""What makes the models of the tests: tiny ones with random or trained weights, in each form that the server reads."""
