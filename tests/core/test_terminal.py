"""Output of the program in a pipe and on a terminal, and output of the libraries that is hidden."""

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


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"} | more


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=60, check=False)


def run_in_terminal(command, **more):
    """Return the output of both streams on a terminal of 80 columns."""
    parent, child = pty.openpty()
    with subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=environment(**more)) as process:
        os.close(child)
        received = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # Linux says so when the last writer is gone
                break
            if not part:
                break
            received += part
        process.wait(timeout=60)
    os.close(parent)
    return received.decode()


STEPS = """
    import time
    for done in range(41):
        terminal.step("quantizing layers", done, 40)
        time.sleep(0.01)
        if done == 20:
            terminal.note("half way")
"""


def test_in_a_pipe_there_are_plain_lines_and_no_noise():
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


def test_in_a_pipe_a_long_step_prints_a_line_every_tenth():
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


def test_on_a_terminal_a_long_step_is_a_bar_that_goes_away():
    received = run_in_terminal(program(STEPS))
    assert "NOISE" not in received
    assert "━" in received
    drawn = [line for line in received.split("\r\n") if "quantizing layers" in line]
    assert len(drawn) < 41  # not at every step
    assert all(line.startswith(("\x1b[1A\r\x1b[2K", "quantizing")) for line in drawn)
    # Every bar that was drawn was cleared again.
    assert received.count("quantizing layers") == received.count("\x1b[1A\r\x1b[2K")
    visible = re.sub(r"quantizing layers[^\n]*\n\x1b\[1A\r\x1b\[2K", "", received)
    assert visible.replace("\r\n", "\n").replace("\r", "") == "loading\nhalf way\n\none block\nafterwards\n"
    assert "\x1b[?25l" not in received  # the cursor is never hidden, so that Ctrl-C cannot lose it


def test_without_colours_the_bar_has_none():
    received = run_in_terminal(program(STEPS), NO_COLOR="1")
    assert "━" in received
    assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", received)


def test_a_simple_terminal_gets_lines():
    received = run_in_terminal(program(STEPS), TERM="dumb")
    assert "quantizing layers: 4/40" in received
    assert "\x1b" not in received


def test_forced_colours_draw_no_bar_into_a_pipe():
    done = run(program(STEPS), FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert "\x1b" not in done.stdout + done.stderr
    assert "quantizing layers: 4/40" in done.stdout


def test_a_bar_with_a_long_name_stays_on_one_line():
    received = run_in_terminal(program('terminal.step("x" * 300, 1, 40)'))
    bar = next(line for line in received.split("\r\n") if line.startswith("xxx"))
    assert len(re.sub(r"\x1b\[[0-9;]*m", "", bar)) <= 80
    assert "1/40" in bar


def test_an_error_of_the_users_is_one_line_and_exit_code_2():
    body = "from benchmarker.core.errors import SpecError\nraise SpecError('quant: no quantization\\n\"bnb-4bit\"')"
    done = run(program(body))
    assert done.stdout == "loading\n"
    assert done.stderr == 'error: quant: no quantization "bnb-4bit"\n'
    assert done.returncode == 2


def test_an_error_is_wrapped_in_a_terminal_but_no_command_is_broken():
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


def test_a_fault_of_the_program_keeps_its_traceback_and_the_last_library_output():
    done = run(program("raise ValueError('boom')"))
    _, last_output = done.stderr.split("ValueError: boom\nThe libraries' last output:\n")
    # What is buffered comes later than what is not.
    assert "NOISE print\n" in last_output
    assert "NOISE from C\n" in last_output
    assert done.returncode == 1


def test_a_crash_in_a_library_shows_its_stack():
    done = run(program("import faulthandler; faulthandler._sigsegv()"))
    assert "Segmentation fault" in done.stderr
    assert done.returncode == -11


def test_ctrl_c_and_errors_leave_no_file_behind(tmp_path):
    for body in ("", "raise KeyboardInterrupt", "raise ValueError"):
        run(program(body), TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_file_behind(tmp_path):
    run(program("os.kill(os.getpid(), 9)"), TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_in_a_test_or_a_notebook_the_streams_are_not_descriptors(capsys):
    with quiet_libraries(verbose=False) as streams:
        print("NOISE")
        print("NOISE", file=sys.stderr)
        Terminal(streams=streams).line("loading")
    assert capsys.readouterr() == ("loading\n", "")
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_the_tail_is_the_last_lines():
    with quiet_libraries(verbose=False) as streams:
        for number in range(30):
            print(f"line {number}")
        os.write(1, b"\n  0%|   |\r 50%|== |\r100%|===|\r\n\x1b[31mred\x1b[0m \xff\n")
        assert streams.tail(4) == "line 28\nline 29\n100%|===|\nred �"
        assert len(streams.tail().splitlines()) == 20
    assert Streams(sys.stdout, sys.stderr).tail() == ""


def shown(action, **options):
    out, error = StringIO(), StringIO()
    action(Terminal(streams=Streams(out, error), **options))
    assert error.getvalue() == ""
    return out.getvalue()


def test_names_cannot_control_the_terminal():
    assert shown(lambda terminal: terminal.line("[bold]a[/bold] :smile: 1.5")) == "[bold]a[/bold] :smile: 1.5\n"
    assert shown(lambda terminal: terminal.line("a\x1b[2Jb\rc\u202ed\x07")) == "a�[2Jb�c�d�\n"
    assert clean("tab\tand\nline, ümläut 模型") == "tab\tand\nline, ümläut 模型"


def test_a_long_line_is_not_broken():
    assert shown(lambda terminal: terminal.line("x" * 300)) == "x" * 300 + "\n"


def test_a_detail_is_not_printed_when_quiet():
    assert shown(lambda terminal: terminal.detail(["a block"]), quiet=True) == ""
    assert shown(lambda terminal: terminal.detail(["a block"])) == "\na block\n"
    sheet = Sheet("", [Column[str]("name", str, "left")], ["aten::mm"])
    assert shown(lambda terminal: terminal.detail([sheet])) == "\nname\naten::mm\n"


def test_a_step_without_a_known_end_is_one_line():
    def action(terminal):
        terminal.step("downloading", 0, 0)
        terminal.step("downloading", 0, 0)
        terminal.step("reading", 1_500_000, 3_000_000)

    assert shown(action) == "  downloading\n  reading: 50 %\n"


def test_letters_outside_the_output_encoding_become_question_marks():
    done = run(program('terminal.line("模型")'), PYTHONIOENCODING="ascii")
    assert "??" in done.stdout
    assert done.returncode == 0


def test_other_exceptions_are_passed_on():
    with pytest.raises(ZeroDivisionError), one_line_errors():
        raise ZeroDivisionError
    with pytest.raises(SystemExit) as stopped, one_line_errors():
        raise SpecError("x")
    assert stopped.value.code == 2


PINNED = """
    terminal.pin("fp16  ·\\nint8  ·")
    terminal.line("round 1")
    terminal.pin("fp16  31\\nint8  ·")
    terminal.line("round 2")
    terminal.pin("")
"""


def on_screen(received):
    """Return the lines that remain on the screen; each erasure removes the last one."""
    lines = []
    for part in re.split(r"(\x1b\[1A\r\x1b\[2K|\r\n)", received):
        if part.startswith("\x1b[1A"):
            lines.pop()
        elif part and part != "\r\n":
            lines.append(part)
    return lines


def test_on_a_terminal_pinned_lines_stay_below_the_output():
    received = run_in_terminal(program(PINNED))
    assert on_screen(received) == ["loading", "round 1", "round 2", "one block", "afterwards"]
    in_the_middle = received[: received.index("round 2") + len("round 2\r\nfp16  31\r\nint8  ·\r\n")]
    assert on_screen(in_the_middle) == ["loading", "round 1", "round 2", "fp16  31", "int8  ·"]


@pytest.mark.parametrize("how", [{"quiet": True}, {"verbose": True}])
def test_nothing_is_pinned_with_quiet_or_verbose(how):
    assert "fp16" not in run_in_terminal(program(PINNED, **how))


def test_nothing_is_pinned_in_a_pipe_or_if_it_does_not_fit():
    assert "fp16" not in run(program(PINNED)).stdout
    assert "fp16" not in run_in_terminal(program(PINNED), COLUMNS="7")
    assert "fp16" not in run_in_terminal(program(PINNED), LINES="2")
