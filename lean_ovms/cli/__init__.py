"""The command line: options, commands, OVMS's flags."""
