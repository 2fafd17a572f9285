"""The "Ivy Sandbox" kernel: Jupyter's messages in, cells of the sandbox out."""
