"""`specexport bench`: plain against speculative decoding, interleaved."""
