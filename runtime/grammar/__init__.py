"""Output that a grammar constrains: the grammars, the state of a text in one, and the tokens that may follow."""
