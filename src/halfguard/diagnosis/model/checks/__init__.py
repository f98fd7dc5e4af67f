"""One check a file: ``check(subject)`` yields findings; a file registers by being here."""
