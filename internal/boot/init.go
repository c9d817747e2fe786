package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// The agent process's descriptors: the results channel, and a pipe from which it reads its agent.Env as JSON.
const (
	channelFD = 3
	envFD     = 4
)

const panicOutput = 16 << 10

// runInit does the work of process 1: it sets the guest up, and waits for the agent or for the console's applet. It
// powers the machine off at its end.
func runInit() {
	defer powerOff()
	say(mounts())
	env, err := setUp()
	say(err)
	if env.Config.Alone != nil {
		runAlone()
		return
	}
	channel, cerr := openResults(&env.Config)
	switch {
	case cerr != nil:
		say(cerr)
		return
	case err != nil:
		report(channel, "init", err.Error())
		return
	}
	if err := agent.WriteEvent(channel, agent.EventBoot, nil); err != nil {
		say(err)
		return
	}
	status, output, err := superviseAgent(channel, env)
	if err != nil {
		report(channel, "start", err.Error())
	} else if status.ExitStatus() != 0 {
		report(channel, describe(status), output)
	}
}

func say(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "vnic-guest: init:", err)
	}
}

func report(channel *os.File, status, output string) {
	fmt.Fprintf(os.Stderr, "vnic-guest: agent ended (%s)\n", status)
	err := unix.SetNonblock(int(channel.Fd()), false) // the agent may have made it non-blocking
	if err == nil {
		err = agent.WriteEvent(channel, agent.EventPanic, agent.Panic{Status: status, Output: output})
	}
	say(err)
}

func describe(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + strconv.Itoa(int(ws.Signal()))
	}
	return "exit status " + strconv.Itoa(ws.ExitStatus())
}

func powerOff() {
	if f, err := os.OpenFile(agent.DefaultChannel, os.O_WRONLY|unix.O_NOCTTY, 0); err == nil {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // drain the line
		_ = f.Close()
	}
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "vnic-guest: power off:", err)
	for {
		time.Sleep(time.Hour) // the end of process 1 would be a kernel panic
	}
}

func mounts() error {
	var errs []error
	for _, m := range []struct{ kind, dir, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"tmpfs", "/tmp", ""},
		{"hugetlbfs", "/dev/hugepages", ""}, {"tmpfs", "/dev/shm", ""}, {"devpts", "/dev/pts", "mode=620,ptmxmode=666"},
	} {
		if files, _ := os.ReadDir(m.dir); m.dir == "/tmp" && len(files) > 0 {
			continue // a mount would hide the image's files
		}
		err := os.MkdirAll(m.dir, 0o755)
		if err == nil {
			err = unix.Mount(m.kind, m.dir, m.kind, unix.MS_NOSUID, m.options)
		}
		if err != nil && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, &os.PathError{Op: "mount " + m.kind, Path: m.dir, Err: err})
		}
	}
	return errors.Join(errs...)
}

func setUp() (agent.Env, error) {
	var env agent.Env
	var err error
	if env.Config, err = agent.ReadConfig(); err != nil {
		return env, err
	}
	c := &env.Config
	limits.Stretch(c.Slow)
	if c.Node0 {
		if err := keepToNode0(); err != nil {
			return env, err
		}
	}
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return env, fmt.Errorf("hostname: %w", err)
		}
	}
	if err := loopbackUp(); err != nil {
		return env, err
	}
	if c.HugePages > 0 {
		if err := reserve(c.HugePages, c.Node0); err != nil {
			return env, err
		}
	}
	for k, v := range c.Sysctl {
		p := filepath.Join("/proc/sys", strings.ReplaceAll(k, ".", "/"))
		if err := os.WriteFile(p, []byte(v), 0); err != nil {
			return env, fmt.Errorf("sysctl %s: %w", k, err)
		}
	}
	l := loader{dir: agent.ModulesPath, done: map[string]bool{}}
	err = l.load(c.Modules)
	env.Modules = l.order
	return env, err
}

// keepToNode0 makes all threads of this process, and processes that they start later, take memory from NUMA node 0
// only.
func keepToNode0() error {
	var mask unix.CPUSet
	mask.Set(0)
	words := mask[:]
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_SET_MEMPOLICY, unix.MPOL_BIND, reflect.ValueOf(words).Pointer(),
		1024)
	runtime.KeepAlive(words)
	if errno != 0 {
		return fmt.Errorf("bind memory to node 0: %w", errno)
	}
	return nil
}

// reserve reserves n huge pages, on node 0 if node0 is set. The kernel silently reserves fewer if memory is short, or
// if a signal comes, as from the Go runtime (mm/hugetlb.c, set_max_huge_pages). So reserve tries again, until it has
// all pages or ten tries in all have added none. If the kernel has no huge pages, reserve returns nil.
func reserve(n int, node0 bool) error {
	path := "/proc/sys/vm/nr_hugepages"
	if node0 {
		path = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "vnic-guest: init: this kernel has no huge pages")
		return nil
	}
	got := 0
	for tries, last := 10, 0; got < n && tries > 0; last = got {
		if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0); err != nil {
			return fmt.Errorf("huge pages: %w", err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("huge pages: %w", err)
		}
		if got, _ = strconv.Atoi(strings.TrimSpace(string(b))); got <= last {
			tries--
		}
	}
	if got < n {
		return fmt.Errorf("huge pages: got %d of %d: give the guest more memory", got, n)
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

func runAgent() error {
	var env agent.Env
	ef := os.NewFile(envFD, "env")
	err := json.NewDecoder(ef).Decode(&env)
	_ = ef.Close()
	if err != nil {
		return fmt.Errorf("env: %w", err)
	}
	if err := unix.SetNonblock(channelFD, true); err != nil {
		return fmt.Errorf("results channel: %w", err)
	}
	return agent.Serve(context.Background(), os.NewFile(channelFD, "results channel"), env)
}

func runAlone() {
	p, err := os.StartProcess("/proc/self/exe", []string{agent.ConsoleApplet}, &os.ProcAttr{
		Env: append([]string{"PATH=/bin:/sbin", "HOME=/root"}, limits.Environ()...), Dir: "/",
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err == nil {
		pid := p.Pid
		_ = p.Release()
		_, err = reap(pid)
	}
	say(err)
}
