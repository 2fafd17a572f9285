"""Our hold on one sandbox: it runs cells there, one at a time."""
