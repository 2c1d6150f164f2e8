"""One thread that owns the session, and the bounded queue in front of it."""
