"""terminal.py END COMMAND...: runs vnic boot's shell on a new terminal, ends it in one way, and prints
the results of its checks.

END is exit, which tries job control and resizing first, QEMU (it is killed), TWICE (two signals, QEMU
hangs), or a signal's name."""
import fcntl, os, pty, select, signal, struct, sys, termios, time

end, command = sys.argv[1], sys.argv[2:]
master, slave = pty.openpty()


def resize(rows, columns):
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


resize(33, 101)
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.execv(command[0], command)
seen = b""


def fail(what):
    os.kill(pid, signal.SIGKILL)
    sys.exit("terminal.py: %s: %s; last seen: %r" % (end, what, seen[-500:]))


def until(want, key=b""):
    """Reads until the shell has written want. It types keys, again after each second of silence, because the
    shell may not have passed the terminal on yet."""
    global seen
    last = time.monotonic() + 120
    os.write(master, key)
    while want not in seen:
        if select.select([master], [], [], 1)[0]:
            seen += os.read(master, 65536)
        elif time.monotonic() < last:
            os.write(master, key)
        else:
            fail("no %r" % want)
    seen = seen[seen.index(want) + len(want):]


def say(line):
    os.write(master, line)


def qemu():
    for task in os.listdir("/proc/%d/task" % pid):
        for child in open("/proc/%d/task/%s/children" % (pid, task)).read().split():
            if b"\0__broker\0" not in open("/proc/%s/cmdline" % child, "rb").read():
                return int(child)
    fail("no QEMU")


until(b"guest0:")
until(b"# ")
if termios.tcgetattr(slave) == before:
    fail("the terminal is as it was: this test would see nothing")
if end == "exit":
    say(b"echo it has $(stty size)\n")
    until(b"it has 33 101\r\n")
    # Not while bash makes its prompt: readline reads the size then and sets it again (rltty.c, set_winsize), so
    # that one that comes in between is lost: one in 500 to 1,500.
    say(b"echo wai''ting; until [ \"$(stty size)\" = '44 122' ]; do sleep 0.1; done; echo resi''zed\n")
    until(b"waiting\r\n")
    resize(44, 122)
    until(b"resized\r\n")
    say(b"PROMPT_COMMAND='s=$?; [ $s != 130 ] || interrupted=$s'\n")
    say(b"sh -c 'echo in''side; exec sleep 1000'\n")
    until(b"inside\r\n")
    until(b"Stopped", b"\x1a")  # Ctrl-Z
    say(b"bg; jobs; echo $((6 * 7))\n")
    until(b"Running")
    until(b"42\r\n")
    say(b"fg\n")
    until(b"sleep 1000'\r\n")
    until(b"# ", b"\x03")  # Ctrl-C
    # A shell that is busy with Ctrl-C may forget what is typed.
    until(b"status 130\r\n", b"\necho status $interrupted\n")
    say(b"exit 5\n")
elif end == "QEMU":
    os.kill(qemu(), signal.SIGKILL)
elif end == "TWICE":
    os.kill(qemu(), signal.SIGSTOP)
    os.kill(pid, signal.SIGTERM)
    time.sleep(1.1)  # a signal that comes sooner is taken for the same one
    os.kill(pid, signal.SIGTERM)
else:
    os.kill(pid, getattr(signal, "SIG" + end))
began = time.monotonic()
while True:
    gone, status = os.waitpid(pid, os.WNOHANG)
    if gone:
        break
    if time.monotonic() - began > 10:
        fail("does not end")
    if select.select([master], [], [], 0.05)[0]:
        seen += os.read(master, 65536)
while select.select([master], [], [], 0.1)[0]:
    seen += os.read(master, 65536)
if termios.tcgetattr(slave) != before:
    fail("the terminal is not as it was")
words = seen.decode(errors="replace").split("\x1b[31mvnic:\x1b[0m ")[-1] if b"vnic:" in seen else ""
error = " | ".join(words.split("\r\n")).strip(" |")
print("status %d, the terminal is as it was: %s" % (os.waitstatus_to_exitcode(status), error))
