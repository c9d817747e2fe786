package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/internal/wire/uplink"
)

// apart is an environment variable with apartOptions in JSON: this program then serves, with the sandbox in
// the mode Mode.
const apart = "VNIC_TEST_APART"

type apartOptions struct {
	Mode      string
	Paths     []string
	Client    bool
	NIC       string
	GPUMemory uint64
	Group     string
	Gateway   lab.GatewayFlags
	Probe     bool
	Poll      int
	Uplinks   []uplink.Config
	Threads   int // threads that block until the process ends
}

// attempt is the result of what an attacker would try.
type attempt struct {
	Name, Err string
	Refused   bool
}

// attempts tries what an attacker would try, before the first QEMU connects. held: the process is in its sandbox, which
// refuses it.
func attempts(dir string, held bool) (list []attempt) {
	for name, do := range map[string]func() error{
		"open /etc/passwd": func() error { _, err := os.ReadFile("/etc/passwd"); return err },
		"write a file":     func() error { return os.WriteFile(dir+"/probe", nil, 0o600) },
		"start a program":  func() error { return exec.Command("/bin/true").Run() },
		"socket":           func() error { return socket(unix.AF_INET) },
		"netlink":          func() error { _, err := net.Interfaces(); return err },
		"unix":             func() error { return socket(unix.AF_UNIX) },
		"dial": func() error {
			c, err := net.Dial("udp", "127.0.0.1:9")
			if err == nil {
				_ = c.Close()
			}
			return err
		},
		"ptrace": func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if _, _, e := unix.Syscall(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1<<30, 0); e != unix.ESRCH {
				return e
			}
			return nil
		},
		"message": func() error { // if held, no descriptor may send it, the broker's neither
			if !held {
				if err := unix.Sendmsg(0, []byte("x"), nil, nil, 0); err != unix.ENOTSOCK {
					return fmt.Errorf("of no socket: %w", err)
				}
				return nil
			}
			for fd := range 100 {
				if err := unix.Sendmsg(fd, []byte("x"), nil, nil, unix.MSG_DONTWAIT); err != unix.EPERM {
					return fmt.Errorf("descriptor %d: %v", fd, err)
				}
			}
			return unix.EPERM
		},
		"signal": func() error { return unix.Kill(os.Getppid(), 0) },
	} {
		a := attempt{Name: name}
		if err := do(); err != nil {
			a.Err, a.Refused = err.Error(), errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
		}
		list = append(list, a)
	}
	return list
}

// arenas is how many arenas glibc's malloc makes, by the tunable arena_test, before it reads the number of processors.
const arenas = 16

// wait starts n threads that block for ever. Each starts the next one, so that glibc, if Go uses it (-race),
// gives each an arena.
func wait(n int) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	var all sync.WaitGroup
	var thread func(left int)
	thread = func(left int) {
		if left > 1 {
			go thread(left - 1)
		}
		all.Done()
		for {
			if _, err := unix.Read(pipe[0], make([]byte, 1)); err != unix.EINTR {
				return
			}
		}
	}
	all.Add(n)
	if n > 0 {
		go thread(n)
	}
	all.Wait()
	return nil
}

func socket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// serveApart serves in this process until its standard input ends. It writes its report, the attempts if Probe is set,
// and at the end the number of refused calls.
func serveApart(what string) error {
	var a apartOptions
	if err := json.Unmarshal([]byte(what), &a); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	o := Options{Paths: a.Paths, Client: a.Client, NIC: lab.NIC{Model: a.NIC}, GPUMemory: a.GPUMemory, Group: a.Group,
		GatewayFlags: a.Gateway, Poll: a.Poll, takeover: testkit.Patience,
		Event: func(port, format string, args ...any) { fmt.Fprintf(os.Stderr, port+": "+format+"\n", args...) }}
	o.Ready = func(r *Report) error {
		err := errors.Join(wait(a.Threads), out.Encode(r))
		if a.Probe {
			err = errors.Join(err, out.Encode(attempts(filepath.Dir(a.Paths[0]), a.Mode == broker.On)))
		}
		return err
	}
	keep := func(path string, dir bool) (func() error, error) { return o.Broker.Keep(path, dir) }
	if a.Mode == broker.Off {
		keep = nil
	}
	o.Services = lab.Uplinks(a.Uplinks, keep)
	if a.Mode != broker.Off {
		config, err := o.BrokerConfig(a.Mode)
		if err != nil {
			return err
		}
		if o.Broker, err = broker.Start(config); err != nil {
			return err
		}
		o.Confine = func() error {
			warning, err := o.Broker.Confine(a.Mode, nil)
			if warning != "" {
				fmt.Fprintln(os.Stderr, warning)
			}
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	err := Do(ctx, o)
	refused := uint64(0)
	if o.Broker != nil {
		refused = o.Broker.Refused()
	}
	return errors.Join(err, out.Encode(refused), o.Broker.Close())
}

type process struct {
	t      testing.TB
	rep    *Report
	in     io.Closer
	out    *json.Decoder
	cmd    *exec.Cmd
	output *strings.Builder // standard error, complete after end
}

func startApart(t testing.TB, a apartOptions) *process {
	t.Helper()
	if a.NIC == "" {
		a.NIC = lab.Virtio
	}
	b := testkit.Must(json.Marshal(a))(t)
	p := &process{t: t, cmd: exec.Command("/proc/self/exe"), rep: new(Report), output: new(strings.Builder)}
	p.cmd.Env = append(os.Environ(), apart+"="+string(b),
		fmt.Sprintf("GLIBC_TUNABLES=glibc.malloc.arena_test=%d", arenas))
	p.cmd.Stderr = p.output
	in, err := p.cmd.StdinPipe()
	testkit.OK(t, err)
	out, err := p.cmd.StdoutPipe()
	testkit.OK(t, errors.Join(err, p.cmd.Start()))
	p.in, p.out = in, json.NewDecoder(bufio.NewReader(out))
	if err := p.out.Decode(p.rep); err != nil {
		_ = p.cmd.Wait()
		t.Fatalf("%v: %s", err, p.output)
	}
	return p
}

func (p *process) end() (refused uint64) {
	p.t.Helper()
	err := errors.Join(p.in.Close(), p.out.Decode(&refused), p.cmd.Wait())
	if err != nil {
		p.t.Fatalf("%v: %s", err, p.output)
	}
	return refused
}

func (p *process) guest(i int) *labtest.Guest {
	p.t.Helper()
	return guestOf(p.t, p.rep, i)
}

func echo(t *testing.T) netip.AddrPort {
	l := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // package net would keep pipes for splice(2)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func through(t *testing.T, g *labtest.Guest, gateway netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	c, err := g.Dial(ctx, netip.AddrPort{}, gateway)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	got := make([]byte, 5)
	if _, err = c.Write([]byte("hello")); err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err == nil && string(got) != "hello" {
		err = fmt.Errorf("%q came back", got)
	}
	return err
}

// In its sandbox no system call of vnic serve is refused (in mode log: would be) while it serves guests, their GPUs'
// memory, a gateway and a forwarded port.
//
// Invariant: sandbox: A confined vnic serve is refused nothing that it needs.
func TestServeNeedsNothingThatIsRefused(t *testing.T) {
	testkit.LeavesNothing(t)
	for i, mode := range []string{broker.Log, broker.On, broker.On} {
		poll := i % 2 // number of polling threads
		host := echo(t)
		dir := t.TempDir()
		free := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
		port := free.LocalAddr().(*net.UDPAddr).Port
		testkit.OK(t, free.Close())
		p := startApart(t, apartOptions{Mode: mode, Paths: []string{dir + "/0", dir + "/1"}, GPUMemory: 2 << 20,
			Poll: poll, Threads: 2 * arenas,
			Gateway: lab.GatewayFlags{HostPorts: fmt.Sprint(host.Port()),
				Forwards: []string{fmt.Sprintf("udp:%d:port0:9", port)}}})
		gw, _ := lab.GatewayAddrs()
		for range 2 {
			a, b := p.guest(0), p.guest(1)
			buf := testkit.Must(a.Register(0, 0, 1<<20))(t)
			testkit.OK(t, buf.Close())
			testkit.OK(t, through(t, a, netip.AddrPortFrom(gw.Addr(), host.Port())))
			if err := through(t, a, netip.AddrPortFrom(gw.Addr(), host.Port()+1)); err == nil {
				t.Error("another port of the host is open")
			}
			u := testkit.Must(net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", port)))(t)
			testkit.Must(u.Write([]byte("in")))(t)
			testkit.OK(t, u.Close())
			testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 200_000), a.Close(), b.Close()))
		}
		if n := p.end(); n != 0 {
			t.Errorf("%s: %d system calls were refused: %s", mode, n, p.output)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
			t.Errorf("%s: left: %v, %v", mode, list, err)
		}
	}
}

func TestServeOfGVEAndOfClientInSandbox(t *testing.T) {
	testkit.LeavesNothing(t)
	p := startApart(t, apartOptions{Mode: broker.On, Paths: []string{t.TempDir() + "/g"}, NIC: lab.GVE,
		GPUMemory: 4 << 20})
	for range 2 {
		conn := testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: p.rep.Ports[0].Socket}))(t)
		c := testkit.Must(vfiotest.Connect(conn))(t)
		testkit.OK(t, c.Close())
	}
	if n := p.end(); n != 0 {
		t.Errorf("gve: %d system calls were refused: %s", n, p.output)
	}
	path := t.TempDir() + "/q"
	p = startApart(t, apartOptions{Mode: broker.On, Paths: []string{path}, Client: true})
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	conn, err := l.AcceptUnix()
	testkit.OK(t, errors.Join(err, l.Close()))
	testkit.OK(t, testkit.Must(labtest.New(conn, p.rep.Ports[0].MAC, addrs(p.rep.Ports[0])))(t).Close())
	if n := p.end(); n != 0 {
		t.Errorf("client: %d system calls were refused: %s", n, p.output)
	}
}

// In mode on all attempts are refused, but for opening /etc/passwd if the kernel has no Landlock. In the other modes
// they succeed. In each mode the process serves after the attempts.
//
// Invariant: sandbox: In mode on, the process that maps guests starts and dials nothing, and with
// Landlock opens only its own /proc and two files of the kernel, for reading.
func TestServingProcessIsHeld(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, mode := range []string{broker.Off, broker.Log, broker.On} {
		dir := t.TempDir()
		p := startApart(t, apartOptions{Mode: mode, Paths: []string{dir + "/0", dir + "/1"}, Probe: true})
		var list []attempt
		testkit.OK(t, p.out.Decode(&list))
		for _, a := range list {
			switch {
			case mode != broker.On && a.Err != "":
				t.Errorf("%s: %s: %s", mode, a.Name, a.Err)
			case mode == broker.On && !a.Refused &&
				(confine.LandlockABI() > 0 || !slices.Contains([]string{"open /etc/passwd"}, a.Name)):
				t.Errorf("on: %s: not refused: %q", a.Name, a.Err)
			}
		}
		a, b := p.guest(0), p.guest(1)
		testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 200_000), a.Close(), b.Close()))
		if n := p.end(); (n > 0) != (mode != broker.Off) {
			t.Errorf("%s: %d counted", mode, n)
		}
		if found := strings.Contains(p.output.String(), "socket, family 2"); found != (mode != broker.Off) {
			t.Errorf("%s: output: %s", mode, p.output)
		}
		if found := strings.Contains(p.output.String(), "openat of /etc/passwd, by Landlock"); found != (mode == broker.Log) {
			t.Errorf("%s: Landlock in the output: %s", mode, p.output)
		}
	}
}

// BenchmarkSandbox measures an exchange of data without the sandbox and in it.
func BenchmarkSandbox(b *testing.B) {
	for _, mode := range []string{broker.Off, broker.On} {
		b.Run(mode, func(b *testing.B) {
			dir := b.TempDir()
			p := startApart(b, apartOptions{Mode: mode, Paths: []string{dir + "/0", dir + "/1"}})
			x, y := p.guest(0), p.guest(1)
			const n = 8 << 20
			b.SetBytes(2 * n)
			for b.Loop() {
				testkit.OK(b, x.Exchange(b.Context(), y, n))
			}
			testkit.OK(b, errors.Join(x.Close(), y.Close()))
			p.end()
			// the CPU time includes the process's start and end
			used := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N*2*(n/1448)), "cpu-ns/frame")
		})
	}
}
