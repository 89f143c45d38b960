"""Files of models on disk: each format is read and written here, and nowhere else."""
