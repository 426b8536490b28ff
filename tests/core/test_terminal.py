"""Output in a pipe and on a terminal, and hidden output of libraries."""

import os
import pty
import re
import subprocess
import sys
import textwrap
from io import StringIO
from pathlib import Path

import pytest

from benchmarker.core.console import Streams, Terminal, one_line_errors, quiet_libraries
from benchmarker.core.errors import SpecError
from benchmarker.core.tables import Column, Sheet, clean

ROOT = Path(__file__).parents[2]

NOISY = """
    import ctypes, logging, os, sys, warnings
    from benchmarker.core.console import Terminal, one_line_errors, quiet_libraries

    def noise():
        print("NOISE print")
        print("NOISE to error", file=sys.stderr)
        warnings.warn("NOISE warning")
        logging.getLogger("a").warning("NOISE log")
        os.system("echo NOISE child; echo NOISE child error >&2")
        ctypes.CDLL(None).puts(b"NOISE from C")
        os.write(2, b"NOISE descriptor\\n")

    with one_line_errors(), quiet_libraries(verbose=VERBOSE) as streams:
        terminal = Terminal(quiet=QUIET, verbose=VERBOSE, streams=streams)
        noise()
        terminal.line("loading")
        BODY
        terminal.show(["one block"])
        noise()
    print("afterwards")
"""


def program(body="", *, quiet=False, verbose=False):
    text = textwrap.dedent(NOISY).replace("QUIET", str(quiet)).replace("VERBOSE", str(verbose))
    return [sys.executable, "-c", text.replace("BODY", textwrap.dedent(body).strip().replace("\n", "\n    ") or "pass")]


def environment(**variables):
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"} | variables


def run(command, **variables):
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(**variables), timeout=60, check=False
    )


def run_in_terminal(command, **variables):
    """Return the output of both streams on a terminal of 80 columns."""
    parent, child = pty.openpty()
    with subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=environment(**variables)) as process:
        os.close(child)
        chunks = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # Linux raises EIO after the last writer has closed
                break
            if not part:
                break
            chunks += part
        process.wait(timeout=60)
    os.close(parent)
    return chunks.decode()


STEPS = """
    import time
    for done in range(41):
        terminal.step("quantizing layers", done, 40)
        time.sleep(0.01)
        if done == 20:
            terminal.note("half way")
"""


def test_pipe_gets_plain_lines_without_library_output():
    done = run(program())
    assert done.stdout == "loading\n\none block\nafterwards\n"
    assert done.stderr == ""
    assert done.returncode == 0


def test_quiet_prints_the_table_alone():
    done = run(program(STEPS, quiet=True))
    assert done.stdout == "one block\nafterwards\n"
    assert done.stderr == ""


def test_verbose_shows_the_output_of_the_libraries():
    done = run(program(verbose=True))
    assert done.stdout.count("NOISE print") == done.stdout.count("NOISE child\n") == 2
    assert "NOISE log" in done.stderr
    assert "loading" in done.stdout


def test_long_step_in_a_pipe_prints_every_tenth():
    lines = run(program(STEPS)).stdout.splitlines()
    assert lines[1:13] == [
        "  quantizing layers: 0/40",
        "  quantizing layers: 4/40",
        "  quantizing layers: 8/40",
        "  quantizing layers: 12/40",
        "  quantizing layers: 16/40",
        "  quantizing layers: 20/40",
        "half way",
        "  quantizing layers: 24/40",
        "  quantizing layers: 28/40",
        "  quantizing layers: 32/40",
        "  quantizing layers: 36/40",
        "  quantizing layers: 40/40",
    ]


def test_long_step_on_a_terminal_is_a_transient_bar():
    output = run_in_terminal(program(STEPS))
    assert "NOISE" not in output
    assert "━" in output
    bars = [line for line in output.split("\r\n") if "quantizing layers" in line]
    assert len(bars) < 41  # not at every step
    assert all(line.startswith(("\x1b[1A\r\x1b[2K", "quantizing")) for line in bars)
    # Every bar is erased.
    assert output.count("quantizing layers") == output.count("\x1b[1A\r\x1b[2K")
    visible = re.sub(r"quantizing layers[^\n]*\n\x1b\[1A\r\x1b\[2K", "", output)
    assert visible.replace("\r\n", "\n").replace("\r", "") == "loading\nhalf way\n\none block\nafterwards\n"
    assert "\x1b[?25l" not in output  # a hidden cursor would stay hidden after Ctrl-C


def test_no_color_removes_the_colours_of_the_bar():
    output = run_in_terminal(program(STEPS), NO_COLOR="1")
    assert "━" in output
    assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", output)


def test_dumb_terminal_gets_lines():
    output = run_in_terminal(program(STEPS), TERM="dumb")
    assert "quantizing layers: 4/40" in output
    assert "\x1b" not in output


def test_force_color_draws_no_bar_into_a_pipe():
    done = run(program(STEPS), FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert "\x1b" not in done.stdout + done.stderr
    assert "quantizing layers: 4/40" in done.stdout


def test_bar_with_a_long_name_fits_one_line():
    output = run_in_terminal(program('terminal.step("x" * 300, 1, 40)'))
    bar = next(line for line in output.split("\r\n") if line.startswith("xxx"))
    assert len(re.sub(r"\x1b\[[0-9;]*m", "", bar)) <= 80
    assert "1/40" in bar


def test_user_error_is_one_line_and_exit_code_2():
    body = "from benchmarker.core.errors import SpecError\nraise SpecError('quant: no quantization\\n\"bnb-4bit\"')"
    done = run(program(body))
    assert done.stdout == "loading\n"
    assert done.stderr == 'error: quant: no quantization "bnb-4bit"\n'
    assert done.returncode == 2


def test_error_on_a_terminal_is_wrapped_outside_commands():
    lines = [
        "error: the environment is not installed, and no other environment has it;",
        "'benchmarker engine install vllm --from wheelhouse' installs it, and",
        "`benchmarker engine list --all --of this machine` shows what is installed;",
        "pip install -e '.[int8]'",
    ]
    message = " ".join(lines).removeprefix("error: ")
    body = f"from benchmarker.core.errors import SpecError\nraise SpecError({message!r})"
    assert run_in_terminal(program(body)).splitlines()[-4:] == lines
    assert run(program(body)).stderr == " ".join(lines) + "\n"


def test_ctrl_c_is_exit_code_130():
    done = run(program("raise KeyboardInterrupt"))
    assert done.stderr == "interrupted\n"
    assert done.returncode == 130


def test_internal_error_prints_traceback_and_last_library_output():
    done = run(program("raise ValueError('boom')"))
    _, last_output = done.stderr.split("ValueError: boom\nThe libraries' last output:\n")
    # Buffered output follows unbuffered output.
    assert "NOISE print\n" in last_output
    assert "NOISE from C\n" in last_output
    assert done.returncode == 1


def test_segmentation_fault_prints_its_stack():
    done = run(program("import faulthandler; faulthandler._sigsegv()"))
    assert "Segmentation fault" in done.stderr
    assert done.returncode == -11


def test_ctrl_c_and_errors_leave_no_temporary_file(tmp_path):
    for body in ("", "raise KeyboardInterrupt", "raise ValueError"):
        run(program(body), TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_killed_process_leaves_no_temporary_file(tmp_path):
    run(program("os.kill(os.getpid(), 9)"), TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_streams_without_descriptors_are_quieted(capsys):
    with quiet_libraries(verbose=False) as streams:
        print("NOISE")
        print("NOISE", file=sys.stderr)
        Terminal(streams=streams).line("loading")
    assert capsys.readouterr() == ("loading\n", "")
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_tail_returns_the_last_lines():
    with quiet_libraries(verbose=False) as streams:
        for number in range(30):
            print(f"line {number}")
        os.write(1, b"\n  0%|   |\r 50%|== |\r100%|===|\r\n\x1b[31mred\x1b[0m \xff\n")
        assert streams.tail(4) == "line 28\nline 29\n100%|===|\nred �"
        assert len(streams.tail().splitlines()) == 20
    assert Streams(sys.stdout, sys.stderr).tail() == ""


def printed_by(action, **options):
    out, error = StringIO(), StringIO()
    action(Terminal(streams=Streams(out, error), **options))
    assert error.getvalue() == ""
    return out.getvalue()


def test_names_cannot_control_the_terminal():
    assert printed_by(lambda terminal: terminal.line("[bold]a[/bold] :smile: 1.5")) == "[bold]a[/bold] :smile: 1.5\n"
    assert printed_by(lambda terminal: terminal.line("a\x1b[2Jb\rc\u202ed\x07")) == "a�[2Jb�c�d�\n"
    assert clean("tab\tand\nline, ümläut 模型") == "tab\tand\nline, ümläut 模型"


def test_long_line_is_not_wrapped():
    assert printed_by(lambda terminal: terminal.line("x" * 300)) == "x" * 300 + "\n"


def test_quiet_hides_details():
    assert printed_by(lambda terminal: terminal.detail(["a block"]), quiet=True) == ""
    assert printed_by(lambda terminal: terminal.detail(["a block"])) == "\na block\n"
    sheet = Sheet("", [Column[str]("name", str, "left")], ["aten::mm"])
    assert printed_by(lambda terminal: terminal.detail([sheet])) == "\nname\naten::mm\n"


def test_step_without_total_is_one_line():
    def action(terminal):
        terminal.step("downloading", 0, 0)
        terminal.step("downloading", 0, 0)
        terminal.step("reading", 1_500_000, 3_000_000)

    assert printed_by(action) == "  downloading\n  reading: 50 %\n"


def test_unencodable_characters_become_question_marks():
    done = run(program('terminal.line("模型")'), PYTHONIOENCODING="ascii")
    assert "??" in done.stdout
    assert done.returncode == 0


def test_other_exceptions_propagate():
    with pytest.raises(ZeroDivisionError), one_line_errors():
        raise ZeroDivisionError
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise SpecError("x")
    assert caught.value.code == 2


PINNED = """
    terminal.pin("fp16  ·\\nint8  ·")
    terminal.line("round 1")
    terminal.pin("fp16  31\\nint8  ·")
    terminal.line("round 2")
    terminal.pin("")
"""


def on_screen(output):
    """Return the lines that remain on the screen; each erasure removes the last one."""
    lines = []
    for part in re.split(r"(\x1b\[1A\r\x1b\[2K|\r\n)", output):
        if part.startswith("\x1b[1A"):
            lines.pop()
        elif part and part != "\r\n":
            lines.append(part)
    return lines


def test_pinned_lines_stay_below_the_output():
    output = run_in_terminal(program(PINNED))
    assert on_screen(output) == ["loading", "round 1", "round 2", "one block", "afterwards"]
    in_the_middle = output[: output.index("round 2") + len("round 2\r\nfp16  31\r\nint8  ·\r\n")]
    assert on_screen(in_the_middle) == ["loading", "round 1", "round 2", "fp16  31", "int8  ·"]


@pytest.mark.parametrize("options", [{"quiet": True}, {"verbose": True}])
def test_quiet_and_verbose_pin_no_lines(options):
    assert "fp16" not in run_in_terminal(program(PINNED, **options))


def test_pipes_and_small_terminals_pin_no_lines():
    assert "fp16" not in run(program(PINNED)).stdout
    assert "fp16" not in run_in_terminal(program(PINNED), COLUMNS="7")
    assert "fp16" not in run_in_terminal(program(PINNED), LINES="2")
