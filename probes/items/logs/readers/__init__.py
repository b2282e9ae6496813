"""One reader a file: records of a log in, events of its transcripts out."""
