package run

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

func TestTable(t *testing.T) {
	inproc := sample()
	inproc.Guest, inproc.Accel, inproc.Runs = "inproc", "none", inproc.Runs[:1]
	inproc.Ratio, inproc.Runs[0].GuestCPU, inproc.Runs[0].GuestCPUSeconds, inproc.Runs[0].Audit = nil, nil, nil, nil
	inproc.Runs[0].Hold = nil
	inproc.Runs[0].SHA256Match, inproc.Runs[0].TX.Host, inproc.Runs[0].Bytes, inproc.Runs[0].Seconds = false, 1234567, 0, 0
	tables := map[string]string{}
	for name, rep := range map[string]*Report{"qemu": sample(), "inproc": inproc} {
		var b strings.Builder
		testkit.OK(t, rep.Table(&b))
		tables[name] = b.String()
	}
	golden.Check(t, "testdata/golden", tables)
}

// A lab's script may have removed the NICs of all rails before the second mode.
func TestModeWithoutRails(t *testing.T) {
	rep := &Report{Runs: []Run{{Mode: "devmem"}, {Mode: "copy"}},
		Rails: []Rail{{Run: Run{Mode: "devmem"}, From: "a.n", To: "b.n"}}}
	var b strings.Builder
	testkit.OK(t, rep.Table(&b))
	if s := b.String(); !strings.Contains(s, "a.n") || strings.Count(s, "copy: no rail was measured\n") != 1 {
		t.Error(s)
	}
}

func TestTableReportsThatNobodyReads(t *testing.T) {
	w := errors.New("nobody reads")
	testkit.ErrorIs(t, sample().Table(failing{w}), w)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Each case of the table makes one field of a good report wrong, and check refuses that report.
//
// Invariant: vnic run: A report that does not prove the transfer is refused.
func TestCheckRefusesWhatIsNoProof(t *testing.T) {
	o := options(268435456)
	o.Audit = true
	testkit.OK(t, sample().check(&o, nil, nil))
	const size = 268435456
	tests := map[string]struct {
		change func(devmem, copied *Run)
		want   string
	}{
		"digest":                    {func(d, _ *Run) { d.SHA256Match = false }, "mode devmem: the destination's digest"},
		"digest of copy":            {func(_, c *Run) { c.SHA256Match = false }, "mode copy: the destination's digest"},
		"short":                     {func(d, _ *Run) { d.Bytes-- }, "bytes of"},
		"one byte sent from host":   {func(d, _ *Run) { d.TX.Host = 1 }, "payload in host memory: 1 bytes sent"},
		"one byte received in host": {func(d, _ *Run) { d.RX.Host = 1 }, "payload in host memory: 0 bytes sent, 1"},
		"less from device":          {func(d, _ *Run) { d.TX.Device-- }, "device memory saw"},
		"less into device":          {func(d, _ *Run) { d.RX.Device-- }, "device memory saw"},
		"linear":                    {func(d, _ *Run) { d.LinearBytes = 1 }, "1 bytes came in host memory"},
		"bounced":                   {func(d, _ *Run) { d.BouncedBytes = 4096 }, "bounced"},
		"copy unseen at the sender": {func(_, c *Run) { c.TX.Host = size - 1 }, "do not see"},
		"copy unseen":               {func(_, c *Run) { c.RX.Host = 0 }, "do not see"},
		"copy in device":            {func(_, c *Run) { c.RX.Device = 1 }, "see what is not there"},
		"audit of sender":           {func(d, _ *Run) { d.Audit.HitsSender = 1 }, "audit: 1 pieces"},
		"audit of receiver":         {func(d, _ *Run) { d.Audit.HitsReceiver = 2 }, "audit: 2 pieces"},
		"audit of nothing":          {func(d, _ *Run) { d.Audit.BytesScanned = 0 }, "nothing was searched"},
		"blind audit of sender":     {func(_, c *Run) { c.Audit.HitsSender = 0 }, "audit does not see"},
		"blind audit of receiver":   {func(_, c *Run) { c.Audit.HitsReceiver = 0 }, "audit does not see"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			rep := sample()
			tt.change(&rep.Runs[0], &rep.Runs[1])
			err := rep.check(&o, nil, nil)
			testkit.ErrorIs(t, err, ErrProof)
			testkit.ErrorSays(t, err, tt.want)
		})
	}
	t.Run("a mode that did not run", func(t *testing.T) {
		rep := sample()
		rep.Runs = rep.Runs[:1]
		testkit.ErrorIs(t, rep.check(&o, nil, nil), ErrProof)
	})
	t.Run("p2p off, and payload in device memory all the same", func(t *testing.T) {
		o.P2P = false
		err := sample().check(&o, nil, nil)
		testkit.ErrorIs(t, err, ErrProof)
		testkit.ErrorSays(t, err, "mode devmem: host memory saw 0")
	})
}

func TestPlan(t *testing.T) {
	tests := []struct {
		size, gpu uint64
		pool      uint64
		rounds    []uint64
		err       string
	}{
		{1, 32 << 20, 4 << 20, []uint64{1}, ""},
		{28 << 20, 32 << 20, 4 << 20, []uint64{28 << 20}, ""},
		{28<<20 + 1, 32 << 20, 4 << 20, []uint64{28 << 20, 1}, ""},
		{256 << 20, 512 << 20, 64 << 20, []uint64{256 << 20}, ""},
		{1 << 30, 4 << 30, 64 << 20, []uint64{1 << 30}, ""},
		{0, 512 << 20, 0, nil, "nothing to transfer"},
		{1, 16 << 20, 0, nil, "too small: 32 MiB"},
		{1, 0, 0, nil, "not a power of two"},
		{1 << 62, 32 << 20, 0, nil, "rounds"},
	}
	for _, tt := range tests {
		o := Defaults()
		o.Size, o.GPUMemory = tt.size, tt.gpu
		err := o.Check()
		if tt.err != "" {
			testkit.ErrorSays(t, err, tt.err)
			continue
		}
		if p := planOf(t, o); err != nil || p.pool != tt.pool || !cmp.Equal(p.rounds, tt.rounds) {
			t.Errorf("%d of %d: got %+v, %v", tt.size, tt.gpu, p, err)
		}
	}
}

func TestPlanOfANode(t *testing.T) {
	for _, tt := range []struct{ size, gpu, window uint64 }{
		{1, 64 << 20, 6 << 20},
		{16 << 20, 256 << 20, 44 << 20},
		{256 << 20, 512 << 20, 312 << 20},
		{1 << 30, 512 << 20, 448 << 20},
	} {
		o := Defaults()
		o.NIC, o.Size, o.GPUMemory = NICGVE, tt.size, tt.gpu
		p := planOf(t, o)
		m, _ := lab.LookupModel(NICGVE)
		if w := p.window(); w != tt.window || w > session.Usable(m, o.GPUMemory) || p.pool+p.rounds[0] > w {
			t.Errorf("%d of %d: window of %d of %d MiB, plan %+v", tt.size, tt.gpu, w>>20, session.Usable(m, o.GPUMemory)>>20, p)
		}
	}
	o := Defaults()
	o.NIC, o.Size, o.GPUMemory = NICGVE, 1, 32<<20
	testkit.ErrorSays(t, o.Check(), "64 MiB at least")
}

func TestPartsOfAGPU(t *testing.T) {
	for _, tt := range []struct {
		nic, driver string
		second      uint64 // base of the GPU's second end; 0 with gve, whose kernel allocates a window for each end
	}{
		{NICVirtio, lab.DriverNode, 64 << 20},
		{NICGVE, lab.DriverNode, 0},
		{NICGVE, lab.DriverVNICGPU, 0},
	} {
		o := Defaults()
		o.NIC, o.GPUDriver, o.Rails, o.Bidir, o.GPUMemory = tt.nic, tt.driver, 1, true, 128<<20
		s := testkit.Must(planned(&o))(t).streams
		testkit.Equal(t, tt.nic+" with "+tt.driver, [2]uint64{s[0].ends[0].base, s[1].ends[1].base}, [2]uint64{0, tt.second})
	}
}

func planOf(t *testing.T, o Options) plan {
	t.Helper()
	return testkit.Must(planned(&o))(t).streams[0].plan
}

func TestQueuesToBind(t *testing.T) {
	for _, tt := range []struct {
		nic               string
		bind, pairs, host int
	}{{NICVirtio, 1, 2, 1}, {NICVirtio, 3, 4, 1}, {NICGVE, 1, 4, 3}, {NICGVE, 2, 4, 2}, {NICGVE, 7, 8, 1}} {
		o := Options{NIC: tt.nic, BindQueues: tt.bind}
		m, _ := lab.LookupModel(tt.nic)
		port := &lab.Port{Model: m, QueuePairs: o.queuePairs(m)}
		c := session.NodeConfig{Port: port, Bind: tt.bind}
		n, b := c.Pairs(), c.Queues()
		if n != tt.pairs || c.HostQueues() != tt.host || len(b) != tt.bind || b[0] != tt.host {
			t.Errorf("%+v: %d pairs, %d for the host, bound %v", tt, n, c.HostQueues(), b)
		}
	}
}

func TestCheckOfOptions(t *testing.T) {
	good := options(1 << 20)
	testkit.OK(t, good.Check())
	for want, change := range map[string]func(*Options){
		"--nic e1000":      func(o *Options) { o.NIC = "e1000" },
		"--nic gve":        func(o *Options) { o.NIC = NICGVE }, // with InProc, which options sets
		"--nic gve: its":   func(o *Options) { o.NIC = "virtio,gve" },
		"--nic virtio,ab":  func(o *Options) { o.NIC = "virtio,ab" },
		"--nic gve,gve,gv": func(o *Options) { o.NIC, o.InProc = "gve,gve,gve", false },
		"--nic ,":          func(o *Options) { o.NIC = "," },
		"--hold-tokens":    func(o *Options) { o.HoldTokens = 1 << 40 },
		"--bind-queues 0":  func(o *Options) { o.BindQueues = 0 },
		"--bind-queues 16": func(o *Options) { o.BindQueues = 16 },
		"--bind-queues 8: guests use 8 pairs of queues of NIC A, of model virtio, and ordinary traffic wants one: 7 at most": func(
			o *Options) {
			o.BindQueues = 8
		},
		"--bind-queues 15: guests use 8 pairs of queues of NIC B, of model virtio": func(o *Options) {
			o.NIC, o.BindQueues, o.InProc = NICGVE+","+NICVirtio, 15, false
		},
		"--mtu 9199":               func(o *Options) { o.NIC, o.InProc, o.MTU = NICGVE, false, 9199 },
		"--mode rdma":              func(o *Options) { o.Modes = []string{"rdma"} },
		"--mode:":                  func(o *Options) { o.Modes = nil },
		"--family 5":               func(o *Options) { o.Family = 5 },
		"--max-mtu 1499":           func(o *Options) { o.InProc, o.MaxMTU = false, 1499 },
		"--max-mtu 9199":           func(o *Options) { o.NIC, o.InProc, o.MaxMTU = NICGVE, false, 9199 },
		"--max-mtu and --guest":    func(o *Options) { o.InProc, o.MaxMTU = true, 9000 },
		"--xdp with model gve":     func(o *Options) { o.NIC, o.InProc, o.XDP = NICGVE, false, true },
		"--xdp and --guest inproc": func(o *Options) { o.InProc, o.XDP = true, true },
		"--mtu 575":                func(o *Options) { o.MTU = 575 },
		"--mtu 1279":               func(o *Options) { o.MTU, o.Family = 1279, 6 },
		"--mtu 65522":              func(o *Options) { o.MTU = 65522 },
		"--loss":                   func(o *Options) { o.Loss = 1 },
		"--gpu-memory 48M":         func(o *Options) { o.GPUMemory = 48 << 20 },
		"--memory 100M":            func(o *Options) { o.Memory = 100 << 20 },
		"--memory 262148K":         func(o *Options) { o.Memory = 256<<20 + 4096 },
		"--modules":                func(o *Options) { o.Fetch.Modules = "/lib/modules" },
		"--stall 0":                func(o *Options) { o.StallSecs = 0 },
		"--pause-at sleep":         func(o *Options) { o.Pause = "sleep" },
		"--size 0":                 func(o *Options) { o.Size = 0 },
		"--rsc-usecs -1: ":         func(o *Options) { o.RSCUsecs = -1 },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil || !strings.HasPrefix(err.Error(), strings.TrimSuffix(want, ":")) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
