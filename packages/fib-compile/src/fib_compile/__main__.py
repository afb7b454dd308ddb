import sys

from fib_compile.cli import main

sys.exit(main())
