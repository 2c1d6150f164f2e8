"""The command line: parse, call one public function, print. Data goes to stdout, everything else to stderr.

A command imports what it needs when it is called, so that `--help` and a wrong option are answered at once.
"""

from .bench import bench
from .build import build
from .calibrate import calibrate
from .compile import compile_plans
from .doctor import doctor
from .generate import generate
from .group import main
from .inspect import inspect
from .verify import verify

for command in (bench, build, calibrate, compile_plans, doctor, generate, inspect, verify):
    main.add_command(command)
