"""The ways in which families of models write calls and answers, as formats that a text is made of or held to."""
