"""One file per endpoint; none imports another. See docs/tour.md for what such a file contains."""
