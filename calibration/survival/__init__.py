"""The probability that a draft token is accepted, learnt from judged tokens."""
