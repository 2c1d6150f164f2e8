"""Output that a grammar bounds: the grammars, where a text stands in one, and the tokens that may follow."""
