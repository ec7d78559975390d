"""Options that several verbs share, and what they are turned into."""
