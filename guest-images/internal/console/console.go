package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/gpusocket"
	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/limits"
)

// Applet configures the network, runs the image's program on the console, and returns its exit status as run does;
// 2: the image has no such program, or its configuration cannot be read.
func Applet([]string) int {
	c, err := agent.ReadConfig()
	if err == nil && c.Alone == nil {
		err = errors.New("not to be started by hand")
	}
	if err != nil {
		say(err)
		return 2
	}
	n, err := connect(context.Background(), c.Alone)
	say(err)
	say(guesttools.MountAlone())
	tty, err := open("/")
	if err != nil {
		say(err)
		tty = os.Stdin
	}
	words, _ := os.ReadFile("/proc/cmdline")
	env := environment(c.Alone.Env, n.env, strings.Fields(string(words)))
	if n.name != "" && !c.Alone.OwnDriver {
		go func() { say(gpusocket.Serve(context.Background(), n.name)) }()
		env = append(env, "VNIC_GPU="+gpusocket.Path)
	}
	if c.Alone.Shell {
		greet(tty, &n)
	}
	say(lead(tty))
	end, status := run(c.Alone, env, tty)
	signal.Ignore(unix.SIGTTOU) // the ioctl TCSBRK raises SIGTTOU in a background process group
	_, _ = fmt.Fprintf(os.Stdout, "vnic-guest: %s: %s\n", c.Alone.Args[0], end)
	_ = unix.IoctlSetInt(int(os.Stdout.Fd()), unix.TCSBRK, 1) // wait until the output is sent (tcdrain(3))
	return status
}

func say(err error) {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "vnic-guest:", err)
	}
}

// greet prints messages to the terminal, and sets the terminal's size if the terminal reports it.
func greet(tty *os.File, n *network) {
	if n.lease.Addr.IsValid() {
		_, _ = fmt.Fprintf(tty,
			"vnic-guest: %s has %v; devmem programs: device, address and more are in the environment (env | grep VNIC)\n",
			n.name, n.lease.Addr)
	}
	for _, m := range n.more {
		_, _ = fmt.Fprintln(tty, "vnic-guest:", m)
	}
	_, _ = fmt.Fprintln(tty, "vnic-guest: the end of the shell powers off")
	if size, ok := askSize(tty, limits.Terminal.Here()); ok {
		_ = unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &size)
	} else {
		_, _ = fmt.Fprintln(tty, "vnic-guest: the terminal does not say its size: stty rows 50 cols 120")
	}
}

// open opens the device of the last console in sysfs below root, as /dev/console cannot become a controlling terminal.
func open(root string) (*os.File, error) {
	b, err := os.ReadFile(filepath.Join(root, "sys/class/tty/console/active"))
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(b))
	if len(names) == 0 {
		return nil, errors.New("the kernel has no console: console=ttyS0 on its command line gives it one")
	}
	return os.OpenFile(filepath.Join(root, "dev", names[len(names)-1]), os.O_RDWR|unix.O_NOCTTY, 0)
}

// environment returns the variables of image, the ones in found that image does not set, and TERM from words,
// the kernel's command line.
func environment(image, found, words []string) []string {
	env := slices.Clone(image)
	for _, e := range found {
		name, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(image, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			env = append(env, e)
		}
	}
	for _, w := range words {
		if strings.HasPrefix(w, "TERM=") {
			env = append(env, w) // os/exec uses the last value of a variable
		}
	}
	return env
}

// lead makes this process a session leader, with tty, if it is a terminal, as controlling terminal. When a
// leader exits, a serial line discards unsent output (drivers/tty: disassociate_ctty in tty_jobctrl.c,
// uart_hangup in serial/serial_core.c): so the image's program must not be a leader.
func lead(tty *os.File) error {
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("setsid: %w", err)
	}
	signal.Notify(make(chan os.Signal, 1))
	if _, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	if err := unix.IoctlSetInt(int(tty.Fd()), unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("%s: it cannot be the program's terminal: %w", tty.Name(), err)
	}
	return nil
}

// run runs the image's program, and returns how it ended, in words and as exit status as a shell has it: 127 for a
// program that is not found, 126 for one that cannot be started, 128 and the number for a signal.
func run(a *agent.Alone, env []string, tty *os.File) (end string, status int) {
	path, err := guestexec.Look(a.Path, env)
	if err != nil {
		return err.Error(), 127
	}
	cmd := &exec.Cmd{Path: path, Args: a.Args, Env: env, Dir: a.Dir, Stdin: tty, Stdout: tty, Stderr: tty}
	if err := cmd.Start(); err != nil {
		return err.Error(), 126
	}
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err.Error(), 1
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return fmt.Sprintf("ended by signal %d", int(ws.Signal())), 128 + int(ws.Signal())
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus()), ws.ExitStatus()
}
