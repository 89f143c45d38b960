"""Files and batches: requests in a file, which are answered while the server has time for them."""
