"""The Responses API, stateless: a translation to a chat request, and of its answer."""
