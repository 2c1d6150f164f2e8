"""`specexport bench`: plain against speculative decoding, in turn."""
