"""Every setting: its value, where it came from, and the files it is read from."""
