package guestnvme

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestBadTargetsAndConnectionsAreRefused(t *testing.T) {
	addr := netip.MustParseAddrPort("10.0.0.1:4420")
	for name, change := range map[string]func(*Target){
		"no NQN":            func(t *Target) { t.NQN = "" },
		"path":              func(t *Target) { t.NQN = "nqn.x/../y" },
		"another option":    func(t *Target) { t.NQN = "nqn.x,hostnqn=y" },
		"line":              func(t *Target) { t.NQN = "nqn.x\n" },
		"long NQN":          func(t *Target) { t.NQN = "nqn." + strings.Repeat("x", 220) },
		"no disk":           func(t *Target) { t.Disks = nil },
		"many disks":        func(t *Target) { t.Disks = make([]string, 65) },
		"no address":        func(t *Target) { t.Addrs = nil },
		"many addresses":    func(t *Target) { t.Addrs = make([]netip.AddrPort, 17) },
		"port 0":            func(t *Target) { t.Addrs = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0")} },
		"zone":              func(t *Target) { t.Addrs = []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%1]:1")} },
		"an address's zero": func(t *Target) { t.Addrs = []netip.AddrPort{addr, {}} },
	} {
		target := Target{NQN: "nqn.x", Addrs: []netip.AddrPort{addr}, Disks: []string{"a"}}
		testkit.OK(t, target.check())
		change(&target)
		testkit.ErrorIs(t, target.check(), unix.EINVAL, name)
		testkit.ErrorIs(t, Serve(t.Context(), nil, target), unix.EINVAL, name)
	}
	for name, change := range map[string]func(*Connection){
		"NQN":        func(c *Connection) { c.NQN = "x" },
		"host":       func(c *Connection) { c.HostNQN = "nqn.x,transport=loop" },
		"address":    func(c *Connection) { c.Addr = netip.AddrPort{} },
		"queues":     func(c *Connection) { c.Queues = -1 },
		"loss":       func(c *Connection) { c.LossSeconds = -1 },
		"namespaces": func(c *Connection) { c.NSIDs = make([]uint32, 65) },
	} {
		c := Connection{Addr: addr, NQN: "nqn.x", HostNQN: "nqn.y"}
		testkit.OK(t, c.check())
		change(&c)
		testkit.ErrorIs(t, testkit.Err(Connect(t.Context(), nil, c)), unix.EINVAL, name)
	}
}

// guest returns the host's end of the results channel of a guest with this package's operations.
func guest(t *testing.T) *agent.Client {
	t.Helper()
	Ops()
	host, end := net.Pipe()
	c := agent.NewClient(host)
	served := make(chan error, 1)
	go func() { served <- agent.Serve(t.Context(), end, agent.Env{}) }()
	t.Cleanup(func() {
		_, _ = c.Close(), end.Close()
		<-served
	})
	return c
}

func TestErrorsOfAGuestReachItsHost(t *testing.T) {
	c := guest(t)
	none := Range{Device: "vnicnone"}
	for says, err := range map[string]error{
		`nvme.read: device "../sda": invalid argument`: testkit.Err(Digest(t.Context(), c, Range{Device: "../sda"})),
		"nvme.read: vnicnone: no such block device":    testkit.Err(Compare(t.Context(), c, none, 1)),
		"nvme.connect: NQN":                            opConnect.Do(t.Context(), c, Connection{}),
		"nvme.write: vnicnone: no such block device":   Write(t.Context(), c, none, 1),
		`nvme.disconnect: controller "x/y": invalid`:   Disconnect(t.Context(), c, "x/y"),
	} {
		testkit.ErrorSays(t, err, says)
	}
	testkit.OK(t, Disconnect(t.Context(), c, "vnicnone"))
	testkit.OK(t, Stop(t.Context(), c))
}

func TestWrongAnswersOfAGuestAreRefused(t *testing.T) {
	c := guest(t)
	var result any
	for _, op := range []string{"nvme.read", "nvme.connect"} {
		agent.Register(op, func(context.Context, json.RawMessage) (any, error) { return result, nil })
	}
	t.Cleanup(Ops)
	all := Range{Device: "vda", Len: 512}
	conn := Connection{Addr: netip.MustParseAddrPort("10.0.0.1:4420"), NQN: "nqn.x", NSIDs: []uint32{1, 2}}
	result = readResult{SHA256: []byte("abc"), Match: 513}
	testkit.ErrorSays(t, testkit.Err(Digest(t.Context(), c, all)), "nvme.read: a digest of 3 bytes")
	testkit.ErrorSays(t, testkit.Err(Compare(t.Context(), c, all, 1)), "nvme.read: 513 bytes the same, of 512")
	sum := sha256.Sum256(nil)
	result = readResult{SHA256: sum[:], Match: 512}
	testkit.Equal(t, "digest", testkit.Must(Digest(t.Context(), c, all))(t), sum)
	testkit.Equal(t, "same", testkit.Must(Compare(t.Context(), c, all, 1))(t), 512)
	result = Controller{Name: "nvme0", Namespaces: make([]Namespace, 1)}
	testkit.ErrorSays(t, testkit.Err(Connect(t.Context(), c, conn)), "nvme.connect: the guest gave 1 namespaces of 2")
	conn.NSIDs = nil
	testkit.Equal(t, "name", testkit.Must(Connect(t.Context(), c, conn))(t).Name, "nvme0")
}

func TestConnectionWaitsForOneNamespace(t *testing.T) {
	for _, list := range [][]uint32{nil, {}, {1}} {
		c := Connection{NSIDs: list}
		if got := c.nsids(); !slices.Equal(got, []uint32{1}) {
			t.Errorf("%#v: %v", list, got)
		}
	}
}

func TestOptionsOfAConnection(t *testing.T) {
	c := Connection{Addr: netip.MustParseAddrPort("[::ffff:10.0.0.1]:4420"), NQN: "nqn.x"}
	const rest = "keep_alive_tmo=30,reconnect_delay=1,ctrl_loss_tmo="
	testkit.Equal(t, "options", c.options(), "transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=nqn.x,hostnqn="+
		DefaultHostNQN+",hostid="+hostID(DefaultHostNQN)+","+rest+"30")
	c.Addr, c.HostNQN, c.Queues, c.LossSeconds = netip.MustParseAddrPort("[fd00::1]:1"), "nqn.y", 2, 5
	testkit.Equal(t, "options", c.options(), "transport=tcp,traddr=fd00::1,trsvcid=1,nqn=nqn.x,hostnqn=nqn.y,hostid="+
		"0c87f752-d534-8db3-99a6-d2ffbff60600,"+rest+"5,nr_io_queues=2")
}

func TestRangeIsChecked(t *testing.T) {
	for _, c := range []struct {
		r  Range
		ok bool
	}{
		{Range{}, true}, {Range{Len: 8192}, true}, {Range{Off: 8192}, true}, {Range{Chunk: 512}, true},
		{Range{Len: 8192 + 512}, false}, {Range{Off: 512, Len: 8192}, false}, {Range{Off: 8192 + 512}, false},
		{Range{Off: 1 << 63, Len: 1 << 63}, false}, {Range{Off: math.MaxUint64 - 511, Len: 1024}, false},
		{Range{Off: 1}, false}, {Range{Len: 511}, false},
		{Range{Chunk: 511}, false}, {Range{Chunk: -512}, false}, {Range{Chunk: 16<<20 + 512}, false},
	} {
		if err := c.r.check(8192, 512); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
}

// within passes a result that comes after the end of its context to the function late.
func TestCallThatIsLate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	kernel, late := make(chan struct{}), make(chan string)
	cancel()
	_, err := within(ctx, func() (string, error) { <-kernel; return "nvme7", nil }, func(name string) { late <- name })
	testkit.ErrorIs(t, err, context.Canceled)
	close(kernel)
	select {
	case name := <-late:
		testkit.Equal(t, "late", name, "nvme7")
	case <-time.After(testkit.Patience):
		t.Error("the controller stays")
	}
}
