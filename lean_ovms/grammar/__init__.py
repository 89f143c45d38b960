"""The notations in which families of models write tool calls and answers, as formats for grammars and for texts."""
