"""What is sent over the wire: requests, answers, errors, events, and the table of fields."""
