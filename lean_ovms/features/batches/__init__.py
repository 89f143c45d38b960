"""Files and batches: requests that clients leave in a file, and that are answered while there is time."""
