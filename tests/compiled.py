"""Exported headers as programs: compiled with every warning an error, and run."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-O2"]
MAIN = """
#include <stdio.h>
#include "{name}.h"
int main(void) {{
    static float x[{NAME}_N_INPUTS], y[{NAME}_N_OUTPUTS];
    while (fread(x, sizeof x, 1, stdin) == 1) {{
        {name}_predict(x, y);
        fwrite(y, sizeof y, 1, stdout);
        {more}
    }}
    return 0;
}}
"""


def run_c(path, x, more=""):
    """Compile the header and run it on every row of x; `more` is C after each row."""
    name = path.stem
    program = path.with_suffix("")
    source = path.with_suffix(".c")
    source.write_text(MAIN.format(name=name, NAME=name.upper(), more=more))
    command = [COMPILER, *FLAGS, str(source), "-o", str(program), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = x.flatten(1).float().contiguous().numpy().tobytes()
    actual = subprocess.run([str(program)], input=rows, capture_output=True, check=True).stdout
    return torch.from_numpy(np.frombuffer(actual, dtype=np.float32).copy()).view(len(x), -1)
