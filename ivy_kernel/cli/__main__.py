"""``python -m ivy_kernel.cli``: the same as ``jupyter ivy``."""

from ivy_kernel.cli.app import main

main()
