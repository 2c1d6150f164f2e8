"""How many tokens to draft."""
