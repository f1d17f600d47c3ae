"""The command line: flags and what is printed; `commands` has one function per command."""
