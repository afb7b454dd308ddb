"""Native guards: a C++ module that tells what entry serves a call, built for the installed torch and Python."""
