"""The command line: its options, its commands, and OVMS's flags."""
