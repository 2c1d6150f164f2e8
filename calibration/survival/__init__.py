"""How probable a draft token is to be accepted, learnt from tokens that were judged."""
