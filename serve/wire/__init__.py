"""What travels: requests, answers, errors, events, and the table of fields."""
